//! The log of accessed files that a sandbox's launcher writes.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use launcher::launch_file::LAUNCH_FILE;
use launcher::spec::{FILES_FILE, FileAuditing, Users};
use rustix::process::Signal;

use super::{Inner, NamespaceBackend, launcher_process};
use crate::error::{SandboxError, failed};
use crate::host::checks::{flawed, good};
use crate::spec::{Check, CheckState, SandboxId};
use crate::{FileAudit, FileLog};

/// How long to wait for the launcher. A launcher of an earlier version never answers.
const PATIENCE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(1);

/// The most fanotify groups of a user, which all sandboxes of a server share.
const MAX_GROUPS_FILE: &str = "/proc/sys/fs/fanotify/max_user_groups";
/// Names and files: see `launcher/file_audit`.
const GROUPS_PER_SANDBOX: u64 = 2;

/// Warns, once per server process, that the files of a sandbox are not listed as they are touched.
#[derive(Default)]
pub(super) struct FileListWarning(OnceLock<()>);

impl FileListWarning {
    pub(super) fn warn(&self, cause: &str, errno: Option<i32>) {
        let remedy = remedy(errno);
        self.0.get_or_init(|| {
            tracing::warn!(
                cause,
                remedy,
                "the files that some sandboxes touch are compared at the end instead of being listed as they are touched"
            );
        });
    }
}

fn remedy(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::EMFILE) => {
            "raise fs.fanotify.max_user_groups with sysctl: each running sandbox takes two groups"
        }
        _ => "see launcher.log in the folder of the sandbox",
    }
}

/// How many sandboxes can list files at the same time; `None` if none can.
pub(super) fn check(inner: &Inner) -> Option<Check> {
    let has_images = inner.offer.no_disks.is_none() && matches!(inner.identity.users, Users::Ranges(_));
    if inner.config.file_audit == FileAuditing::Off || !has_images {
        return None;
    }
    Some(describe(fs::read_to_string(MAX_GROUPS_FILE).ok().as_deref()))
}

/// `limit` is the content of [`MAX_GROUPS_FILE`].
fn describe(limit: Option<&str>) -> Check {
    let name = "file lists";
    match limit.and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(limit) => {
            let sandboxes = limit / GROUPS_PER_SANDBOX;
            let found = format!(
                "for {sandboxes} sandboxes at a time (fs.fanotify.max_user_groups = {limit}); for more, the workspace is compared at the end"
            );
            good(name, found)
        }
        None => flawed(
            CheckState::Weaker,
            name,
            "this kernel has no limit of fanotify groups; files are compared at the end if it has no fanotify",
            "use a kernel with CONFIG_FANOTIFY",
        ),
    }
}

#[async_trait]
impl FileAudit for NamespaceBackend {
    fn is_recorded(&self, id: SandboxId) -> bool {
        self.inner.layout.sandbox(id).join(FILES_FILE).exists()
    }

    async fn open(&self, id: SandboxId) -> Result<Option<FileLog>, SandboxError> {
        self.blocking(move |inner| {
            // If the launcher does not answer, only the newest lines are missing.
            let _ = settle(inner, id);
            let path = inner.layout.sandbox(id).join(FILES_FILE);
            match File::open(&path) {
                Ok(log) => Ok(Some(Box::new(log) as FileLog)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(failed("opening", &path, source)),
            }
        })
        .await
    }
}

/// Asks the launcher to write out everything up to now, and waits for it.
fn settle(inner: &Inner, id: SandboxId) -> Result<(), SandboxError> {
    let directory = inner.layout.sandbox(id);
    if !directory.join(FILES_FILE).exists() {
        return Ok(());
    }
    let asking = |source| failed("asking for the list of files of", &directory, source);
    let before = last_confirmed(&directory);
    let Some(owner) = launcher_process::find(&directory).map_err(asking)? else { return Ok(()) };
    owner.signal(Signal::URG).map_err(asking)?;
    let end = Instant::now() + PATIENCE;
    while last_confirmed(&directory) == before && Instant::now() < end {
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// When the launcher last confirmed that the log is complete.
fn last_confirmed(directory: &Path) -> Option<SystemTime> {
    fs::metadata(directory.join(LAUNCH_FILE)).and_then(|facts| facts.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_says_how_many_sandboxes_can_list_files() {
        let found = describe(Some("128\n"));
        assert_eq!(found.state, CheckState::Good);
        assert!(
            found.found.starts_with("for 64 sandboxes at a time (fs.fanotify.max_user_groups = 128)"),
            "{found:?}"
        );
        assert_eq!(describe(None).state, CheckState::Weaker);
    }

    #[test]
    fn warning_names_the_setting_only_if_it_helps() {
        assert!(remedy(Some(libc::EMFILE)).contains("fs.fanotify.max_user_groups"));
        assert!(remedy(Some(libc::EPERM)).contains("launcher.log"));
        assert!(remedy(None).contains("launcher.log"));
    }
}
