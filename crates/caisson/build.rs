//! Puts the two static programs into the binary. They are built first, by `./build-guest`.

use std::path::{Path, PathBuf};

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let target = std::env::var("TARGET").unwrap_or_default();
    for (name, variable) in [("caisson-guest", "CAISSON_GUEST"), ("caisson-launcher", "CAISSON_LAUNCHER")] {
        match find(&out, &target, name) {
            Some(path) => {
                println!("cargo::rerun-if-changed={}", path.display());
                println!("cargo::rustc-env={variable}={}", path.display());
            }
            None => {
                println!("cargo::error={name} is not built yet; run ./build-guest in the top folder first")
            }
        }
    }
}

/// The program in the target folder, which is somewhere above the folder for our output.
fn find(out: &Path, target: &str, name: &str) -> Option<PathBuf> {
    out.ancestors().map(|folder| folder.join(target).join("static").join(name)).find(|path| path.is_file())
}
