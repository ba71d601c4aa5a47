//! The AppArmor profile of guests.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;

use crate::host::checks::{flawed, good};
use crate::spec::{Check, CheckState};

/// The AppArmor profile in `deploy/apparmor`.
const PROFILE: &str = "caisson-sandbox";
/// Where its source is: in an installed package, and in the repository.
const PROFILE_FILES: [&str; 2] = ["/etc/apparmor.d/caisson-sandbox", "deploy/apparmor/caisson-sandbox"];
/// The list of loaded profiles, which only root can read, and nobody in a container.
const LOADED_PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
/// Where a thread selects the profile of the program that it will exec.
const EXEC_PROFILE: &str = "/proc/thread-self/attr/apparmor/exec";

/// The profile for guests, if the host has AppArmor and the profile is loaded.
pub(super) fn profile() -> Option<String> {
    let is_loaded = match fs::read_to_string(LOADED_PROFILES) {
        Ok(list) => list.lines().any(|line| line.starts_with(&format!("{PROFILE} "))),
        Err(_) => can_choose_profile(),
    };
    is_loaded.then(|| PROFILE.into())
}

/// For users who may not list the loaded profiles. Any user may select a profile; the kernel refuses one that does
/// not exist and logs that, so this tries only once. The selection ends with the thread.
fn can_choose_profile() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let choose = || fs::write(EXEC_PROFILE, format!("exec {PROFILE}"));
        let may_choose = Path::new(EXEC_PROFILE).exists() && own_profile().is_none();
        may_choose && matches!(thread::spawn(choose).join(), Ok(Ok(())))
    })
}

/// The profile that already confines this process, such as Docker's in a container.
fn own_profile() -> Option<String> {
    let current = fs::read_to_string("/proc/self/attr/apparmor/current").ok()?;
    Some(current.trim().strip_suffix(" (enforce)")?.to_owned())
}

/// Whether guests get a profile, for `doctor`.
pub(super) fn check() -> Check {
    let name = "AppArmor";
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled").unwrap_or_default();
    if enabled.trim() != "Y" {
        return good(name, "not on this host; namespaces, Landlock and seccomp do not need it");
    }
    if profile().is_some() {
        return good(name, format!("profile {PROFILE} is loaded"));
    }
    if let Some(own) = own_profile() {
        return good(name, format!("this process has profile {own}, and so have its sandboxes"));
    }
    let profile = PROFILE_FILES.iter().find(|file| Path::new(file).exists()).unwrap_or(&PROFILE_FILES[1]);
    let remedy = format!("apparmor_parser -r {profile}");
    flawed(CheckState::Weaker, name, format!("profile {PROFILE} is not loaded"), &remedy)
}
