//! Builds the two static programs that travel inside the binary (`./build-guest`), beside the crates that need none of them,
//! and puts them in, each with the name of its file.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// What the two programs are made of.
const SOURCES: [&str; 6] =
    ["build-guest", "Cargo.toml", "Cargo.lock", "crates/guest", "crates/launcher", "crates/protocol"];

/// What the build around this one has set, and must not reach that of the two programs.
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
    // None begins like a setting: the tests' runner hands these on, and settings that nobody reads are told.
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

/// The name of a program's file, which is another one for another content. Made here: a processor without instructions for it
/// takes 20 ms to digest both, at each start.
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
