//! The simplest baselines: a plain process, and `bwrap` with the usual options.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The program that every baseline runs.
pub(crate) const TRUE: &str = "/usr/bin/true";

/// Runs a command without input or output and waits for it; fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = tokio::task::block_in_place(|| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()
    });
    let output = status.with_context(|| format!("starting {}", command.get_program().display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {}", command.get_program().display(), said.trim());
    Ok(())
}

/// Runs `true` as a plain process.
pub(crate) fn run_true() -> Result<()> {
    let status = tokio::task::block_in_place(|| {
        Command::new(TRUE).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
    });
    ensure!(status.with_context(|| format!("starting {TRUE}"))?.success(), "{TRUE} failed");
    Ok(())
}

/// Runs `true` in bubblewrap: all namespaces, the host's `/usr` read-only, a workspace. No limits, no seccomp.
pub(crate) fn run_true_in_bubblewrap(workspace: &Path) -> Result<()> {
    let fixed = "--unshare-all --die-with-parent --new-session --cap-drop ALL --ro-bind /usr /usr \
                 --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
                 --proc /proc --dev /dev --tmpfs /tmp";
    let mut command = Command::new("bwrap");
    command.args(fixed.split_whitespace()).arg("--bind").arg(workspace).arg("/workspace");
    run(command.args(["--chdir", "/workspace", TRUE]))
}
