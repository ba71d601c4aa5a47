//! Flushing the log of accessed files that a sandbox's launcher writes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use launcher::launch_file::LAUNCH_FILE;
use launcher::spec::FILES_FILE;
use rustix::process::Signal;

use super::layout::failed;
use super::{Inner, launcher_process};
use crate::error::SandboxError;
use crate::spec::SandboxId;

/// How long to wait for the launcher. A launcher of an earlier version never answers.
const PATIENCE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(1);

/// Asks the launcher to write out everything up to now, and waits for it.
pub(super) fn settle(inner: &Inner, id: SandboxId) -> Result<(), SandboxError> {
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
