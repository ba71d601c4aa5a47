//! The first stage: a minimal Debian that can install packages, created by mmdebstrap, or a copy of another image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::build_root::{self, require_program, with_all_ids};
use crate::error::ImageError;
use crate::recipe::SUITE;
use crate::registry_access::RegistryAccess;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// What the next stage needs to reach its mirrors and to verify them.
const INCLUDED: &str = "ca-certificates,debian-archive-keyring";

/// The command that creates the first stage, and the work left to do when it has finished.
pub(crate) struct Bootstrap {
    pub(crate) command: Command,
    /// The archive that mmdebstrap writes if it cannot write a directory.
    archive: Option<PathBuf>,
}

impl Bootstrap {
    /// Prepares the command that installs a minimal Debian into a directory that does not exist yet.
    pub(crate) fn new(
        target: &Path,
        access: &RegistryAccess,
        access_folder: &Path,
    ) -> Result<Self, ImageError> {
        if !Path::new(KEYRING).exists() {
            return Err(ImageError::ProgramMissing {
                program: KEYRING.to_owned(),
                purpose: "tells Debian's packages from others",
                package: "debian-archive-keyring",
            });
        }
        let mirror = access.mirrors().main;
        let program = require_program("mmdebstrap", "makes a root file system of Debian", "mmdebstrap")?;
        let mut command = Command::new(program);
        command.args([
            "--variant=minbase",
            &format!("--include={INCLUDED}"),
            &format!("--keyring={KEYRING}"),
        ]);
        // This ends up in the image; the next stage removes it.
        command.arg(format!("--aptopt={}", access_folder.join("apt.conf").display()));
        let archive = (!geteuid().is_root()).then(|| target.with_extension("tar"));
        match &archive {
            None => command.args(["--mode=root", SUITE]).arg(target),
            // In this mode, writing to a directory would leave files with ids that this process cannot access.
            Some(archive) => command.args(["--mode=unshare", SUITE]).arg(archive),
        };
        command.arg(mirror).stdin(Stdio::null());
        Ok(Self { command, archive })
    }

    /// If an archive was created, unpacks it into the directory.
    pub(crate) fn finish(&self, target: &Path) -> Result<(), ImageError> {
        let Some(archive) = &self.archive else { return Ok(()) };
        fs::create_dir_all(target).map_err(ImageError::at("making", target))?;
        let mut command = with_all_ids("tar")?;
        // Device files cannot be created here, and sandboxes have their own.
        command.args([
            "--extract",
            "--preserve-permissions",
            "--numeric-owner",
            "--exclude=./dev/*",
            "--file",
        ]);
        command.arg(archive).arg("--directory").arg(target);
        build_root::run(command, "unpacking", archive)?;
        fs::remove_file(archive).map_err(ImageError::at("removing", archive))
    }
}
