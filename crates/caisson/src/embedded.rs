//! The two static programs that travel inside this binary: written to the data folder once, found there again.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

const GUEST: &[u8] = include_bytes!(env!("CAISSON_GUEST"));
const LAUNCHER: &[u8] = include_bytes!(env!("CAISSON_LAUNCHER"));

/// Everybody may run them.
const MODE: u32 = 0o755;

/// Where the programs are.
pub(crate) struct Programs {
    pub(crate) guest: PathBuf,
    pub(crate) launcher: PathBuf,
}

/// Writes the programs where they are missing. Old versions stay: sandboxes that run may still need them.
pub(crate) fn install(folder: &Path) -> Result<Programs> {
    fs::create_dir_all(folder).with_context(|| format!("making the folder {}", folder.display()))?;
    Ok(Programs { guest: write(folder, "guest", GUEST)?, launcher: write(folder, "launcher", LAUNCHER)? })
}

fn write(folder: &Path, name: &str, content: &[u8]) -> Result<PathBuf> {
    let digest: String = Sha256::digest(content).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join(format!("{name}-{digest}"));
    let is_there = |metadata: fs::Metadata| {
        metadata.len() == content.len() as u64 && metadata.permissions().mode() & 0o777 == MODE
    };
    if fs::metadata(&path).is_ok_and(is_there) {
        return Ok(path);
    }
    let partial = folder.join(format!("{name}-{digest}.partial-{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(MODE)
        .open(&partial)
        .with_context(|| format!("writing {}", partial.display()))?;
    // Sandboxes run them as users of their own, whatever umask this process has.
    file.set_permissions(fs::Permissions::from_mode(MODE))
        .and_then(|()| file.write_all(content))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&partial, &path))
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}
