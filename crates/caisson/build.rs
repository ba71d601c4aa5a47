//! Builds the two static programs embedded in the binary (`./build-guest`), in parallel with the crates that do not
//! need them, and embeds each with its file name.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// The inputs of the two programs.
const SOURCES: [&str; 6] =
    ["build-guest", "Cargo.toml", "Cargo.lock", "crates/guest", "crates/launcher", "crates/protocol"];

/// Variables of the outer build that must not reach the build of the two programs.
const NOT_PASSED_ON: [&str; 3] = ["CARGO_ENCODED_RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET"];

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let target = std::env::var("TARGET").unwrap_or_default();
    let folder = target_folder(&target);
    if let Err(error) = build(&root, &folder) {
        println!("cargo::error=building the guest and the launcher (./build-guest): {error}");
        return;
    }
    // The names must not start with `CAISSON_`: the test runner passes them on, and the server warns of unknown
    // settings.
    for (name, variable) in [("guest", "EMBEDDED_GUEST"), ("launcher", "EMBEDDED_LAUNCHER")] {
        let path = folder.join(&target).join("static").join(format!("caisson-{name}"));
        println!("cargo::rustc-env={variable}={}", path.display());
        match std::fs::read(&path) {
            Ok(content) => println!("cargo::rustc-env={variable}_FILE={}", file_name(name, &content)),
            Err(error) => println!("cargo::error=reading {}: {error}", path.display()),
        }
    }
}

/// Builds both programs below the target folder.
fn build(root: &Path, target_folder: &Path) -> Result<(), String> {
    let mut command = Command::new(root.join("build-guest"));
    for name in NOT_PASSED_ON {
        command.env_remove(name);
    }
    let output =
        command.env("CARGO_TARGET_DIR", target_folder).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr))
        .replace('\n', "\ncargo::error="))
}

/// The file name of a program, which includes a hash of its content. Computed at build time, because a CPU without
/// SHA instructions would need 20 ms at each start to hash both.
fn file_name(name: &str, content: &[u8]) -> String {
    let digest: String = Sha256::digest(content).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{name}-{digest}")
}

/// The target folder of this build, whose output goes to `TARGET_FOLDER/[TRIPLE/]PROFILE/build/PACKAGE/out`.
fn target_folder(triple: &str) -> PathBuf {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let above_profile = out.ancestors().nth(4).unwrap_or(&out);
    let has_triple = above_profile.file_name().is_some_and(|name| name == triple);
    if has_triple { above_profile.parent().unwrap_or(above_profile) } else { above_profile }.to_owned()
}
