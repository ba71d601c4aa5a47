//! `./run` and `./test` find Rust, or say what to do if it is missing or too old before they install anything.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use e2e::source;

/// Runs the scripts' check for Rust with only these programs and variables.
fn need_rust(programs: &Path, more: &[(&str, &str)]) -> Output {
    for tool in ["sed", "sort", "cut"] {
        let _ = symlink(format!("/usr/bin/{tool}"), programs.join(tool));
    }
    let mut command = Command::new("/usr/bin/env");
    command.arg("-i").arg(format!("PATH={}", programs.display()));
    command.arg(format!("HOME={}", programs.display()));
    command.args(more.iter().map(|(name, value)| format!("{name}={value}")));
    command.args([
        "/bin/bash",
        "-c",
        "source .ci/setup; need_rust; command -v cargo; echo home=${RUSTUP_HOME:-}",
    ]);
    command.current_dir(source::root()).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn put(folder: &Path, name: &str, text: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join(name), text).unwrap();
    fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
}

fn put_rust(folder: &Path, version: &str) {
    put(folder, "cargo", "#!/bin/sh\n");
    put(folder, "rustc", &format!("#!/bin/sh\necho 'rustc {version} (abcdef 2026-01-01)'\n"));
}

fn wanted() -> String {
    let manifest: toml::Table =
        fs::read_to_string(source::root().join("Cargo.toml")).unwrap().parse().unwrap();
    manifest["workspace"]["package"]["rust-version"].as_str().unwrap().to_owned()
}

#[test]
fn outdated_rust_is_reported_with_the_required_version() {
    let wanted = wanted();
    for (version, is_good) in [
        ("1.63.0", false),
        ("1.85.0", false),
        ("1.9.0", false),
        (format!("{wanted}.0").as_str(), true),
        ("1.100.1", true),
        ("2.0.0-nightly", true),
        ("", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        put_rust(folder.path(), version);
        let output = need_rust(folder.path(), &[]);
        assert_eq!(output.status.success(), is_good, "{version}: {}", said(&output));
        let told = said(&output);
        assert!(is_good || (told.contains(&wanted) && told.contains("rustup update")), "{told}");
    }
    let readme = fs::read_to_string(source::root().join("README.md")).unwrap();
    assert!(readme.contains(&format!("Rust {wanted}")), "README.md names another version");
}

#[test]
fn rust_of_the_invoking_user_is_found_under_sudo() {
    let (empty, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    put_rust(&home.path().join(".cargo/bin"), "999.0.0");
    let entry =
        format!("#!/bin/sh\n[ \"$2\" = ada ] && echo 'ada:x:1000:1000::{}:/bin/sh'\n", home.path().display());
    put(empty.path(), "getent", &entry);
    let output = need_rust(empty.path(), &[("SUDO_USER", "ada")]);
    assert!(output.status.success(), "{}", said(&output));
    let told = said(&output);
    let found = home.path().join(".cargo/bin/cargo");
    assert!(told.contains(&found.display().to_string()), "{told}");
    assert!(told.contains(&format!("home={}", home.path().join(".rustup").display())), "{told}");
}
