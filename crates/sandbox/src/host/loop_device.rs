//! Waiting for the kernel to release the loop device of a sandbox's disk.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use launcher::disk::is_under;

use super::disk::DISK_FILE;
use crate::error::{SandboxError, failed};

const BLOCK_DEVICES: &str = "/sys/block";
const TICK: Duration = Duration::from_micros(500);

/// Waits until no loop device uses the disk. The last unmount releases the device a moment after the last process is
/// gone. `device` is its number, if known.
pub(crate) fn wait_for_disk(
    directory: &Path,
    device: Option<u32>,
    patience: Duration,
) -> Result<(), SandboxError> {
    let image = directory.join(DISK_FILE);
    // The kernel reports the path with symlinks resolved.
    let image = match fs::canonicalize(&image) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|source| failed("looking at", &image, source))?,
    };
    let end = Instant::now() + patience;
    while is_in_use(device, &image) {
        if Instant::now() > end {
            return Err(failed("waiting for the loop device of", &image, io::ErrorKind::TimedOut.into()));
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Whether a loop device still uses an image: the given device, or any.
fn is_in_use(device: Option<u32>, image: &Path) -> bool {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("loop")?.parse().ok();
    match device {
        Some(number) => is_under(number, image),
        None => fs::read_dir(BLOCK_DEVICES)
            .is_ok_and(|entries| entries.flatten().filter_map(number).any(|number| is_under(number, image))),
    }
}
