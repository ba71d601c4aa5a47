//! Deletes what a sandbox of an unprivileged user has left behind.
//!
//! Its files may belong to subordinate ids, and its directories may deny access even to their owner. Root of a user
//! namespace that maps all those ids may delete them.

use std::fs;
use std::io;

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::channel::{self, Message};
use crate::child;
use crate::error::{LaunchError, Step};
use crate::spec::{Removal, Report};
use crate::sys::{self, Cloned, Namespaces};
use crate::users;

/// Deletes a directory tree; succeeds if it does not exist.
///
/// # Errors
/// The host has no user namespaces, or a file cannot be deleted.
pub fn remove(removal: &Removal) -> Result<(), LaunchError> {
    in_user_namespace(Namespaces::User, &removal.users, || match fs::remove_dir_all(&removal.directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.step(|| format!("removing {}", removal.directory.display())),
    })
}

/// Runs work in a separate process, as root of new namespaces that map all ids of these users.
pub(crate) fn in_user_namespace(
    kinds: Namespaces,
    users: &crate::spec::Users,
    work: impl FnOnce() -> Result<(), LaunchError>,
) -> Result<(), LaunchError> {
    let (ours, theirs) = channel::pair().named("making a channel")?;
    match sys::clone_into_namespaces(kinds, None).named("making namespaces")? {
        Cloned::Child => {
            drop(ours);
            let result = theirs
                .recv(Message::Mapped)
                .named("waiting for user ids")
                .and_then(|_| child::become_root(users).named("becoming user 0 of the namespace"))
                .and_then(|()| work());
            if let Err(error) = &result {
                theirs.report_error(error);
            }
            sys::exit_now(i32::from(result.is_err()))
        }
        Cloned::Owner { pid, .. } => {
            drop(theirs);
            let mapped = users::map_all(pid, users);
            if mapped.is_ok() {
                ours.send_message(Message::Mapped, &[]).named("telling of user ids")?;
            }
            let said = if mapped.is_ok() { ours.wait_for_guest() } else { Ok(None) };
            // Closing this end makes a process that still waits for its ids exit.
            drop(ours);
            let status = waitpid(Pid::from_raw(pid), WaitOptions::empty()).named("waiting for a process")?;
            mapped?;
            if let Ok(Some(Report::Failed { step, cause, errno })) = said {
                let source = errno.map_or_else(|| io::Error::other(cause), io::Error::from_raw_os_error);
                return Err(LaunchError::new(step, source));
            }
            match status {
                Some((_, status)) if status.exit_status() == Some(0) => Ok(()),
                _ => {
                    Err(LaunchError::new("working in a user namespace", io::Error::other("the process died")))
                }
            }
        }
    }
}
