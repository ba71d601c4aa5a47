//! What is shipped beside the binary: the package, the unit, the seccomp profile for containers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use e2e::{binary, source};
use serde_json::Value;

fn read(path: &str) -> String {
    std::fs::read_to_string(source::root().join(path)).expect(path)
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

#[test]
fn the_debian_package_has_everything_and_a_configuration_that_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let package = run(Command::new(source::root().join("deploy/debian/build"))
        .arg("--binary")
        .arg(binary())
        .arg("--out")
        .arg(folder.path())
        // Packing well takes longer than all other tests.
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none"));
    let tree = folder.path().join("tree");
    run(Command::new("dpkg-deb").args(["-x", package.trim()]).arg(&tree));
    for path in [
        "usr/bin/caisson",
        "usr/lib/systemd/system/caisson.service",
        "usr/share/man/man1/caisson.1.gz",
        "usr/share/man/man1/caisson-serve.1.gz",
        "usr/share/bash-completion/completions/caisson",
        "usr/share/zsh/vendor-completions/_caisson",
        "usr/share/fish/vendor_completions.d/caisson.fish",
        "usr/share/doc/caisson/copyright",
        "etc/apparmor.d/caisson-sandbox",
    ] {
        assert!(tree.join(path).is_file(), "{path} is not in the package");
    }
    let configuration = std::fs::read_to_string(tree.join("etc/caisson/caisson.toml")).unwrap();
    let set: Vec<&str> =
        configuration.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(set.is_empty(), "these are not comments: {set:?}");
    let control = run(Command::new("dpkg-deb").args(["-I", package.trim(), "conffiles"]));
    assert!(control.contains("/etc/caisson/caisson.toml"), "{control}");
    let script = run(Command::new("dpkg-deb").args(["-I", package.trim(), "postinst"]));
    let mut commands = script.lines().map(str::trim).filter(|line| line.starts_with("systemctl"));
    assert!(commands.all(|line| line.contains("daemon-reload") || line.contains("try-restart")), "{script}");
}

#[test]
fn the_unit_leaves_sandboxes_alone_at_a_restart() {
    let unit = read("deploy/systemd/caisson.service");
    let lines: BTreeSet<&str> = unit.lines().collect();
    for line in ["KillMode=process", "Delegate=yes", "RuntimeDirectoryPreserve=yes", "StateDirectory=caisson"]
    {
        assert!(lines.contains(line), "{line} is missing");
    }
    // Each of these makes sandboxes impossible.
    for name in
        ["ProtectSystem", "ProtectProc", "ProtectKernelTunables", "PrivateDevices", "RestrictNamespaces"]
    {
        assert!(!unit.lines().any(|line| line.starts_with(&format!("{name}="))), "{name} is set");
    }
}

#[test]
fn the_seccomp_profile_lets_the_launcher_work_and_refuses_what_owns_a_host() {
    let profile: Value = serde_json::from_str(&read("deploy/compose/seccomp.json")).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let (mut allowed, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for rule in profile["syscalls"].as_array().unwrap() {
        let names = rule["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        if rule["action"] == "SCMP_ACT_ALLOW" { allowed.extend(names) } else { refused.extend(names) }
    }
    let both: Vec<_> = allowed.intersection(&refused).collect();
    assert!(both.is_empty(), "allowed and refused: {both:?}");
    for name in [
        "unshare",
        "setns",
        "mount_setattr",
        "open_tree",
        "move_mount",
        "pivot_root",
        "landlock_restrict_self",
    ] {
        assert!(allowed.contains(name), "{name} is not allowed");
    }
    for name in [
        "bpf",
        "kexec_load",
        "init_module",
        "finit_module",
        "reboot",
        "keyctl",
        "open_by_handle_at",
        "swapon",
    ] {
        assert!(!allowed.contains(name), "{name} is allowed");
    }
}

#[test]
fn the_container_image_has_a_build_context_that_holds_every_member() {
    let ignored = read(".dockerignore");
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    for member in manifest["workspace"]["members"].as_array().unwrap() {
        let folder = member.as_str().unwrap().trim_end_matches("/*");
        assert!(
            ignored.lines().any(|line| line == format!("!{folder}")),
            "{folder} is not sent to the builder"
        );
    }
    assert!(Path::new(&source::root()).join("deploy/compose/caisson.toml").is_file());
}
