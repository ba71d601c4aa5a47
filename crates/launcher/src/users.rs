//! Allocates the user ids of a sandbox and maps them into its user namespace.

use std::fs;
use std::io;
use std::process::{Child, Command, Stdio};

use rustix::process::{getegid, geteuid};

use crate::error::{LaunchError, Step};
use crate::slot::{self, Slot};
use crate::spec::{AGENT_ID, ID_MAP_PROGRAMS, Slots, UIDS_PER_SANDBOX, Users};

/// Takes ids that no other sandbox has; `None` if all sandboxes share the same id.
pub(crate) fn take(users: &Users) -> Result<Option<Slot>, LaunchError> {
    match users {
        Users::Ranges(slots) | Users::Lent { slots, .. } => slot::take(slots).map(Some),
        Users::Single => Ok(None),
    }
}

/// The first uid of a slot's range.
pub(crate) fn first_of_range(slots: &Slots, slot: &Slot) -> u32 {
    slots.first_uid + slot.number * UIDS_PER_SANDBOX
}

/// Maps the ids of one sandbox into the user namespace of a process.
pub(crate) fn map(pid: i32, users: &Users, slot: Option<&Slot>) -> Result<(), LaunchError> {
    let number = slot.map_or(0, |slot| slot.number);
    match users {
        Users::Ranges(slots) => {
            let first = slots.first_uid + number * UIDS_PER_SANDBOX;
            write_maps(pid, [first, first], UIDS_PER_SANDBOX)
        }
        Users::Lent { slots, first_gid } => {
            map_subordinate(pid, AGENT_ID, [slots.first_uid + number, first_gid + number], 1)
        }
        Users::Single => map_single(pid),
    }
}

/// Maps the ids of all sandboxes of these users into the user namespace of a process.
pub(crate) fn map_all(pid: i32, users: &Users) -> Result<(), LaunchError> {
    match users {
        Users::Ranges(slots) => {
            write_maps(pid, [slots.first_uid; 2], slots.count.saturating_mul(UIDS_PER_SANDBOX))
        }
        Users::Lent { slots, first_gid } => {
            map_subordinate(pid, 1, [slots.first_uid, *first_gid], slots.count)
        }
        Users::Single => map_single(pid),
    }
}

/// The kernel requires denying `setgroups` first, because groups can deny access.
fn map_single(pid: i32) -> Result<(), LaunchError> {
    fs::write(format!("/proc/{pid}/setgroups"), "deny").named("giving up supplementary groups")?;
    write_maps(pid, [geteuid().as_raw(), getegid().as_raw()], 1)
}

fn write_maps(pid: i32, first: [u32; 2], count: u32) -> Result<(), LaunchError> {
    for (file, first) in ["uid_map", "gid_map"].into_iter().zip(first) {
        fs::write(format!("/proc/{pid}/{file}"), format!("0 {first} {count}"))
            .step(|| format!("writing {file}"))?;
    }
    Ok(())
}

/// Maps 0 to the user's own ids, and `count` ids from `inside` on to subordinate ones. Both helpers run concurrently.
fn map_subordinate(pid: i32, inside: u32, first: [u32; 2], count: u32) -> Result<(), LaunchError> {
    let own = [geteuid().as_raw(), getegid().as_raw()];
    let start = |index: usize| -> Result<Child, LaunchError> {
        let numbers = [0, own[index], 1, inside, first[index], count];
        Command::new(ID_MAP_PROGRAMS[index])
            .arg(pid.to_string())
            .args(numbers.map(|number| number.to_string()))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .step(|| format!("starting {}", ID_MAP_PROGRAMS[index]))
    };
    let helpers = [start(0)?, start(1)?];
    for (name, helper) in ID_MAP_PROGRAMS.into_iter().zip(helpers) {
        let output = helper.wait_with_output().step(|| format!("waiting for {name}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(LaunchError::new(format!("lending ids by {name}"), io::Error::other(said)));
        }
    }
    Ok(())
}
