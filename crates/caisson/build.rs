//! Puts the two static programs into the binary, each with the name of its file. They are built first, by `./build-guest`.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let target = std::env::var("TARGET").unwrap_or_default();
    // None begins like a setting: the tests' runner hands these on, and settings that nobody reads are told.
    for (name, variable) in [("guest", "EMBEDDED_GUEST"), ("launcher", "EMBEDDED_LAUNCHER")] {
        let Some(path) = find(&out, &target, &format!("caisson-{name}")) else {
            println!(
                "cargo::error=caisson-{name} is not built yet; run ./build-guest in the top folder first"
            );
            continue;
        };
        println!("cargo::rerun-if-changed={}", path.display());
        println!("cargo::rustc-env={variable}={}", path.display());
        match std::fs::read(&path) {
            Ok(content) => println!("cargo::rustc-env={variable}_FILE={}", file_name(name, &content)),
            Err(error) => println!("cargo::error=reading {}: {error}", path.display()),
        }
    }
}

/// The name of a program's file, which is another one for another content. Made here: a processor without instructions for it
/// takes 20 ms to digest both, at each start.
fn file_name(name: &str, content: &[u8]) -> String {
    let digest: String = Sha256::digest(content).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{name}-{digest}")
}

/// The program in the target folder, which is somewhere above the folder for our output.
fn find(out: &Path, target: &str, name: &str) -> Option<PathBuf> {
    out.ancestors().map(|folder| folder.join(target).join("static").join(name)).find(|path| path.is_file())
}
