//! The two static programs embedded in this binary: written to the data folder once, and reused from there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use sandbox::namespace::LAUNCH_FILE;

/// A program, and its file name, which includes a hash of its content.
struct Program {
    file_name: &'static str,
    content: &'static [u8],
}

const GUEST: Program =
    Program { file_name: env!("EMBEDDED_GUEST_FILE"), content: include_bytes!(env!("EMBEDDED_GUEST")) };
const LAUNCHER: Program =
    Program { file_name: env!("EMBEDDED_LAUNCHER_FILE"), content: include_bytes!(env!("EMBEDDED_LAUNCHER")) };

/// Executable by every user.
const MODE: u32 = 0o755;

/// Paths of the programs.
pub(crate) struct Programs {
    pub(crate) guest: PathBuf,
    pub(crate) launcher: PathBuf,
}

/// The same programs in memory, for inspecting a host without writing to disk. They exist as long as this value.
pub(crate) struct InMemory {
    guest: File,
    launcher: File,
}

impl InMemory {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            guest: write_memfd("caisson-guest", &GUEST)?,
            launcher: write_memfd("caisson-launcher", &LAUNCHER)?,
        })
    }

    /// Paths by which this process and its children can execute the programs.
    pub(crate) fn programs(&self) -> Programs {
        let path = |file: &File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Programs { guest: path(&self.guest), launcher: path(&self.launcher) }
    }
}

fn write_memfd(name: &str, program: &Program) -> io::Result<File> {
    // Kernels before 6.3 do not know `MFD_EXEC`.
    let made = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::EXEC)
        .or_else(|_| memfd_create(name, MemfdFlags::CLOEXEC))?;
    let mut file = File::from(made);
    file.write_all(program.content)?;
    Ok(file)
}

/// Writes missing programs. Old versions stay until [`sweep`] finds that nothing needs them.
pub(crate) fn install(folder: &Path) -> Result<Programs> {
    fs::create_dir_all(folder).with_context(|| format!("creating the folder {}", folder.display()))?;
    Ok(Programs { guest: write(folder, &GUEST)?, launcher: write(folder, &LAUNCHER)? })
}

/// Removes programs of other versions from a data folder if no sandbox in it uses them. Keeps all if that cannot be
/// determined: sandboxes that are not processes of this host, and one-shot servers that share the programs.
pub(crate) fn sweep(data: &Path) {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    if entries(data.join("once")).next().is_some() {
        return;
    }
    let launches: Option<Vec<String>> = entries(data.join("sandboxes"))
        .map(|sandbox| fs::read_to_string(sandbox.path().join(LAUNCH_FILE)).ok())
        .collect();
    let Some(launches) = launches else { return };
    let current = [GUEST.file_name, LAUNCHER.file_name];
    for program in entries(data.join("bin")) {
        let name = program.file_name().to_string_lossy().into_owned();
        let is_ours = name.starts_with("guest-") || name.starts_with("launcher-");
        let is_used =
            current.contains(&name.as_str()) || launches.iter().any(|launch| launch.contains(&name));
        if is_ours && !is_used && fs::remove_file(program.path()).is_ok() {
            tracing::debug!(name, "removed a program of an earlier version");
        }
    }
}

fn write(folder: &Path, program: &Program) -> Result<PathBuf> {
    let Program { file_name: name, content } = program;
    let path = folder.join(name);
    let is_there = |metadata: fs::Metadata| {
        metadata.len() == content.len() as u64 && metadata.permissions().mode() & 0o777 == MODE
    };
    if fs::metadata(&path).is_ok_and(is_there) {
        return Ok(path);
    }
    let partial = folder.join(format!("{name}.partial-{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(MODE)
        .open(&partial)
        .with_context(|| format!("writing {}", partial.display()))?;
    // Sandboxes run the programs as their own users, so the mode must not depend on the umask.
    file.set_permissions(fs::Permissions::from_mode(MODE))
        .and_then(|()| file.write_all(content))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&partial, &path))
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn program_file_name_contains_its_hash() {
        for (name, program) in [("guest", GUEST), ("launcher", LAUNCHER)] {
            let digest = Sha256::digest(program.content);
            let digits: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(program.file_name, format!("{name}-{digits}"));
        }
    }

    /// A data folder with the current programs and those of an earlier version.
    fn data() -> (tempfile::TempDir, PathBuf) {
        let data = tempfile::tempdir().unwrap();
        install(&data.path().join("bin")).unwrap();
        let old = data.path().join("bin/guest-0123456789abcdef");
        fs::write(&old, "old").unwrap();
        (data, old)
    }

    #[test]
    fn old_program_is_kept_while_a_sandbox_uses_it() {
        let (data, old) = data();
        let sandbox = data.path().join("sandboxes/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f");
        fs::create_dir_all(&sandbox).unwrap();
        sweep(data.path());
        assert!(old.exists(), "nobody knows how the sandbox was made");
        fs::write(sandbox.join(LAUNCH_FILE), format!("{{\"guest\": \"{}\"}}", old.display())).unwrap();
        sweep(data.path());
        assert!(old.exists(), "the sandbox was made with it");
        fs::remove_dir_all(sandbox).unwrap();
        sweep(data.path());
        assert!(!old.exists());
        assert_eq!(fs::read_dir(data.path().join("bin")).unwrap().count(), 2, "the current ones stay");
    }

    #[test]
    fn one_shot_servers_keep_shared_programs() {
        let (data, old) = data();
        fs::create_dir_all(data.path().join("once/server")).unwrap();
        sweep(data.path());
        assert!(old.exists());
    }
}
