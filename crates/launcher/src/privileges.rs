//! Restricts the guest with capabilities, Landlock, AppArmor and seccomp. Applied last, just before the guest is
//! executed.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
};

use crate::error::{LaunchError, Step};
use crate::spec::{LaunchSpec, Users};
use crate::sys;

/// What the guest needs to run processes as another user, and to kill them.
const KEPT: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);

/// The Landlock ABI version of this kernel; 0 if Landlock is missing or disabled.
#[must_use]
pub fn landlock_version() -> i32 {
    sys::landlock_version().unwrap_or(0)
}

/// Drops every privilege that the guest does not need. This is irreversible.
pub(crate) fn drop_privileges(
    spec: &LaunchSpec,
    guest: BorrowedFd<'_>,
    state: BorrowedFd<'_>,
) -> Result<(), LaunchError> {
    let kept = match spec.users {
        Users::Ranges(_) | Users::Lent { .. } => KEPT,
        // Processes that the guest runs have its user id and would gain its capabilities. There is no other user to
        // switch to or to signal.
        Users::Single => CapabilitySet::empty(),
    };
    drop_capabilities(kept).named("dropping capabilities")?;
    set_no_new_privs(true).named("setting no_new_privs")?;
    if let Some(profile) = &spec.apparmor_profile {
        choose_profile(profile).step(|| format!("choosing AppArmor profile {profile}"))?;
    }
    restrict_files(spec, guest, state).map_err(io::Error::other).named("applying Landlock")?;
    install_filter(spec)
}

pub(crate) fn install_filter(spec: &LaunchSpec) -> Result<(), LaunchError> {
    let program = decode_hexadecimal(&spec.seccomp).named("decoding the seccomp program")?;
    sys::install_filter(&program).named("installing the seccomp program")
}

/// The bounding set must be exactly `kept`: executing a program as user 0 grants everything in the bounding set.
pub(crate) fn drop_capabilities(kept: CapabilitySet) -> rustix::io::Result<()> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // This number is past the last capability that this kernel knows.
            Err(rustix::io::Errno::INVAL) => break,
            other => other?,
        }
    }
    clear_ambient_capability_set()?;
    set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED
            | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED,
    )?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)
}

fn choose_profile(profile: &str) -> io::Result<()> {
    let order = format!("exec {profile}");
    match fs::write("/proc/self/attr/apparmor/exec", &order) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::write("/proc/self/attr/exec", &order),
        other => other,
    }
}

/// Allows read and execute everywhere, and write only below the writable directories. Uses the strictest ABI that the
/// kernel supports.
fn restrict_files(
    spec: &LaunchSpec,
    guest: BorrowedFd<'_>,
    state: BorrowedFd<'_>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let all = AccessFs::from_all(ABI::V5);
    let read = AccessFs::from_read(ABI::V5);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .add_rule(PathBeneath::new(PathFd::new("/")?, read))?
        // The guest's executable and its journal are outside the root.
        .add_rule(PathBeneath::new(guest, AccessFs::Execute | AccessFs::ReadFile))?
        .add_rule(PathBeneath::new(state, all))?
        // Processes write to their own entries; permissions and read-only mounts protect the rest.
        .add_rule(PathBeneath::new(PathFd::new("/proc")?, read | AccessFs::WriteFile))?
        .add_rule(PathBeneath::new(PathFd::new("/dev")?, all))?;
    for path in &spec.writable {
        if let Ok(directory) = PathFd::new(path) {
            rules = rules.add_rule(PathBeneath::new(directory, all))?;
        }
    }
    rules.restrict_self()?;
    Ok(())
}

fn decode_hexadecimal(text: &str) -> io::Result<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair).map_err(io::Error::other)?;
            u8::from_str_radix(pair, 16).map_err(io::Error::other)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::decode_hexadecimal;

    #[test]
    fn hexadecimal_text_becomes_bytes() {
        assert_eq!(decode_hexadecimal("00ff2a").unwrap(), [0, 255, 42]);
        assert!(decode_hexadecimal("0x").is_err());
    }
}
