//! Escape attempts from a sandbox.
//!
//! [`attempts`] lists them as data. This module runs them in one sandbox of a backend, as the agent, and compares the
//! host before and after ([`outside`]). Attempts that need more than a script have their own modules: the file
//! interface ([`links`]) and resource exhaustion ([`exhaustion`]). A backend's test file implements [`AttackedBackend`] and
//! invokes `escape_suite`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code, unused_imports, unused_macros)]

pub(crate) mod attempts;
mod exhaustion;
mod host_state;
mod links;

use std::path::PathBuf;

use protocol::ExecEnd;
use sandbox::SandboxId;
use sandbox::conformance::{CommandResult, Guest, Subject, make, remove, spec_for};

use attempts::{Attempt, PRELUDE, Where, system_calls};
pub(crate) use exhaustion::*;
use host_state::HostTargets;
pub(crate) use links::*;

/// A backend under attack, with the targets that an attacker would be interested in.
pub(crate) trait AttackedBackend: Subject {
    /// Whether an attempt makes sense in this backend's sandboxes.
    fn applies(&self, place: Where) -> bool {
        let has_root = self.isolation() > sandbox::Isolation::Landlock;
        match place {
            Where::Everywhere => true,
            Where::OwnUser => has_root || rustix::process::geteuid().is_root(),
            Where::OwnRoot => has_root,
        }
    }
    /// Processes of the host that own the sandbox.
    fn outside(&self, id: SandboxId) -> Vec<i32>;
    /// The guest's process id as seen inside the sandbox.
    fn guest_inside(&self, _id: SandboxId) -> i32 {
        1
    }
    /// Programs of the host that run in the sandbox or create it.
    fn programs(&self) -> Vec<PathBuf>;
    /// The host directory with the sandbox's state.
    fn state(&self, id: SandboxId) -> PathBuf;
    /// Whether a limit is enforced.
    fn enforces(&self, limit: sandbox::LimitKind) -> bool;
}

/// Runs Python as the agent and returns the words that it printed.
pub(crate) async fn python(guest: &Guest, script: &str) -> Vec<String> {
    let ran = run_python(guest, script).await;
    assert_eq!(ran.end, ExecEnd::Code(0), "{ran:?}");
    ran.stdout.split_whitespace().map(String::from).collect()
}

async fn run_python(guest: &Guest, script: &str) -> CommandResult {
    let script = format!("{}{PRELUDE}{script}", system_calls());
    guest.run_program(&["/usr/bin/python3", "-c", &script]).await
}

/// Runs Python and asserts that every word it prints is one of these refusals.
pub(crate) async fn refused(guest: &Guest, script: &str, refusals: &[&str]) {
    let words = python(guest, script).await;
    assert!(!words.is_empty(), "nothing was tried");
    assert!(words.iter().all(|word| refusals.contains(&word.as_str())), "{words:?}");
}

/// What is wrong with the outcome of an attempt; `None` if it was refused.
fn fault(attempt: &Attempt, ran: &CommandResult) -> Option<String> {
    let words: Vec<&str> = ran.stdout.split_whitespace().collect();
    let wrong: Vec<&&str> = words.iter().filter(|word| !attempt.refusals.contains(word)).collect();
    let came_to_its_end = ran.end == ExecEnd::Code(0) && !words.is_empty();
    (!came_to_its_end || !wrong.is_empty())
        .then(|| format!("{}: {wrong:?} {:?} {}", attempt.name, ran.end, ran.stderr))
}

/// Runs all attempts of the list, one after another in one sandbox.
pub(crate) async fn every_escape_attempt_is_refused_and_the_host_is_unchanged(
    backend_under_attack: impl AttackedBackend,
) {
    let id = make(&backend_under_attack, &spec_for(&backend_under_attack)).await;
    let guest = Guest::of(backend_under_attack.backend(), id).await;
    let outside = HostTargets::prepare(&backend_under_attack, id);
    let facts = outside.python(&backend_under_attack, id);
    let before = outside.look();
    let attempts: Vec<_> =
        attempts::all().into_iter().filter(|it| backend_under_attack.applies(it.applies)).collect();
    assert!(attempts.len() >= 40, "{} attempts", attempts.len());
    let mut faults = Vec::new();
    let mut told = std::collections::BTreeSet::new();
    for attempt in &attempts {
        let ran = run_python(&guest, &format!("{facts}{}", attempt.script)).await;
        faults.extend(fault(attempt, &ran));
        let changed = before.differences(&outside.look());
        let new = changed.into_iter().filter(|change| told.insert(change.clone()));
        faults.extend(new.map(|change| format!("{}: {change}", attempt.name)));
    }
    assert_eq!(guest.expect("echo alive").await, "alive");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let owners = backend_under_attack.outside(id);
    remove(&backend_under_attack, id).await;
    // The owner processes end with the sandbox.
    let is_owner = |change: &String| owners.iter().any(|pid| change.starts_with(&format!("process {pid} ")));
    let changed: Vec<String> =
        before.differences(&outside.look()).into_iter().filter(|change| !is_owner(change)).collect();
    assert_eq!(changed, Vec::<String>::new());
    outside.assert_nobody_came();
}

/// Generates all tests; `$backend_under_attack` is an expression that evaluates to a [`AttackedBackend`].
macro_rules! escape_suite {
    ($backend_under_attack:expr) => {
        escape_suite! { $backend_under_attack;
            every_escape_attempt_is_refused_and_the_host_is_unchanged
            file_interface_does_not_follow_symlinks_out
            swapped_symlinks_do_not_lead_out
            swapped_hard_links_do_not_lead_out
            collecting_a_changing_workspace_leaks_nothing_of_the_host
            archives_with_parents_and_links_stay_inside
            process_exhaustion_does_not_affect_host_or_guest
            memory_exhaustion_does_not_affect_host_or_guest
            disk_and_inode_exhaustion_does_not_affect_host_or_guest
            fd_and_pty_exhaustion_does_not_affect_host_or_guest
            connection_exhaustion_does_not_affect_the_guest
        }
    };
    ($backend_under_attack:expr; $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                escape_suite::$name($backend_under_attack).await;
            }
        )*
    };
}
pub(crate) use escape_suite;
