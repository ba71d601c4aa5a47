//! What is shipped with the binary: the package, the systemd unit, the seccomp profile for containers, `./run` and the
//! README.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod checkout;
mod own_network;
mod package;
mod readme;
mod run_script;
mod rust;
mod shell;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
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
fn debian_package_is_complete_and_its_configuration_equals_the_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let package = run(Command::new(source::root().join("deploy/debian/build"))
        .arg("--binary")
        .arg(binary())
        .arg("--out")
        .arg(folder.path())
        // Compressing well takes longer than all other tests.
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
        "usr/share/doc/caisson/systemd/user.conf",
        "usr/share/caisson/apparmor/caisson",
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
fn systemd_unit_keeps_sandboxes_across_a_restart() {
    let unit = read("deploy/systemd/caisson.service");
    let lines: BTreeSet<&str> = unit.lines().collect();
    for line in ["KillMode=process", "Delegate=yes", "RuntimeDirectoryPreserve=yes", "StateDirectory=caisson"]
    {
        assert!(lines.contains(line), "{line} is missing");
    }
    // Each of these settings makes sandboxes impossible, or hides their disks from a Docker engine.
    for name in [
        "ProtectHome",
        "InaccessiblePaths",
        "ReadOnlyPaths",
        "TemporaryFileSystem",
        "ProtectSystem",
        "ProtectProc",
        "ProtectKernelTunables",
        "PrivateDevices",
        "RestrictNamespaces",
        "PrivateTmp",
    ] {
        assert!(!unit.lines().any(|line| line.starts_with(&format!("{name}="))), "{name} is set");
    }
    // A guest without namespaces drops its bounding set, which needs this capability.
    let bounds = unit.lines().find(|line| line.starts_with("CapabilityBoundingSet=")).unwrap();
    assert!(bounds.split(['=', ' ']).any(|name| name == "CAP_SETPCAP"), "{bounds}");
}

#[test]
fn systemd_unit_starts_after_docker_without_requiring_it_and_retries_forever() {
    let unit = read("deploy/systemd/caisson.service");
    let words = |name: &str| -> BTreeSet<&str> {
        let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        lines.flat_map(|line| line.split(' ')).collect()
    };
    assert!(words("After").contains("docker.service") && words("Wants").contains("docker.service"));
    assert!(words("Requires").is_empty() && words("BindsTo").is_empty());
    assert_eq!(words("StartLimitIntervalSec"), BTreeSet::from(["0"]));
    assert_eq!(words("Restart"), BTreeSet::from(["on-failure"]));
}

#[test]
fn systemd_reload_checks_the_configuration_first() {
    let unit = read("deploy/systemd/caisson.service");
    let reloads: Vec<&str> = unit.lines().filter(|line| line.starts_with("ExecReload=")).collect();
    assert_eq!(
        reloads,
        ["ExecReload=/usr/bin/caisson config check --quiet", "ExecReload=/bin/kill -HUP $MAINPID"]
    );
    assert!(unit.lines().any(|line| line == "EnvironmentFile=-/etc/caisson/environment"));
}

#[test]
fn apparmor_profile_recommended_by_doctor_allows_user_namespaces() {
    let profile = read("deploy/apparmor/caisson");
    assert!(
        profile.lines().any(|line| line == "profile caisson /usr/bin/caisson flags=(unconfined) {"),
        "{profile}"
    );
    assert!(profile.lines().any(|line| line.trim() == "userns,"), "{profile}");
}

#[test]
fn apparmor_profile_lets_the_server_signal_sandboxes() {
    let own = read("deploy/apparmor/caisson");
    let name = own.lines().find_map(|line| line.strip_prefix("profile ")?.split(' ').next()).unwrap();
    let inner = read("deploy/apparmor/caisson-sandbox");
    // For a server without a profile, and for one with its own.
    for peer in ["unconfined", name] {
        let rule = format!("signal receive peer={peer},");
        assert!(inner.lines().any(|line| line.trim() == rule), "{rule} is missing");
    }
}

#[test]
fn non_root_service_can_restart_and_use_subordinate_ids() {
    let unit = read("deploy/systemd/caisson.service");
    let drop_in = read("deploy/systemd/user.conf");
    let lines: BTreeSet<&str> = drop_in.lines().collect();
    assert!(lines.contains("DelegateSubgroup=caisson-server") && lines.contains("NoNewPrivileges=no"));
    // Each of these settings implies NoNewPrivileges= for a service with User=.
    for name in [
        "SystemCallFilter",
        "SystemCallArchitectures",
        "RestrictAddressFamilies",
        "RestrictRealtime",
        "LockPersonality",
        "RestrictSUIDSGID",
        "MemoryDenyWriteExecute",
        "ProtectClock",
        "ProtectKernelModules",
        "ProtectKernelLogs",
        "ProtectHostname",
        "RestrictNamespaces",
    ] {
        let is_set = unit.lines().any(|line| line.starts_with(&format!("{name}=")));
        let is_reset =
            lines.contains(format!("{name}=").as_str()) || lines.contains(format!("{name}=no").as_str());
        assert!(!is_set || is_reset, "{name} is set by the unit and stays");
    }
}

#[test]
fn seccomp_profile_allows_the_launcher_and_denies_dangerous_calls() {
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

/// Whether `.dockerignore` includes a path of the repository; the last matching rule decides.
fn is_sent(rules: &str, path: &Path) -> bool {
    let mut sent = true;
    for rule in rules.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (pattern, verdict) = rule.strip_prefix('!').map_or((rule, false), |pattern| (pattern, true));
        let fits = match pattern.strip_prefix("**/") {
            Some(name) => path.iter().any(|part| part == name),
            None => pattern == "*" || path.starts_with(pattern),
        };
        if fits {
            sent = verdict;
        }
    }
    sent
}

/// Copies the files of a fresh clone that the builder of the container image receives.
fn copy_context(target: &Path) -> Vec<PathBuf> {
    let rules = read(".dockerignore");
    let sent: Vec<PathBuf> =
        source::tracked_files().unwrap().into_iter().filter(|path| is_sent(&rules, path)).collect();
    for path in &sent {
        let copy = target.join(path);
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(source::root().join(path), copy).unwrap();
    }
    sent
}

/// The files that a source file includes by a relative path.
fn included(file: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(file).unwrap();
    let calls = ["include_str!(\"", "include_bytes!(\""];
    let names =
        calls.iter().flat_map(|call| text.split(call).skip(1)).filter_map(|rest| rest.split('"').next());
    names.map(|name| file.parent().unwrap().join(name)).collect()
}

#[test]
fn docker_build_context_contains_all_compiled_sources() {
    let folder = tempfile::tempdir().unwrap();
    let sent = copy_context(folder.path());
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    for member in manifest["workspace"]["members"].as_array().unwrap() {
        let member = member.as_str().unwrap().trim_end_matches("/*");
        assert!(folder.path().join(member).is_dir(), "{member} is not sent to the builder");
    }
    for name in ["Cargo.lock", "build-guest", "build-web", "caisson.example.toml"] {
        assert!(folder.path().join(name).is_file(), "{name} is not sent to the builder");
    }
    let mut looked_at = 0;
    let compiled =
        |path: &&PathBuf| path.starts_with("crates") && path.extension().is_some_and(|end| end == "rs");
    for file in sent.iter().filter(compiled) {
        for taken in included(&folder.path().join(file)) {
            assert!(taken.exists(), "{} takes in {}, which is not sent", file.display(), taken.display());
            looked_at += 1;
        }
    }
    assert!(looked_at > 5, "only {looked_at} files were looked for");
    assert!(Path::new(&source::root()).join("deploy/compose/caisson.toml").is_file());
}

#[test]
fn web_pages_can_be_built_from_the_docker_build_context() {
    let folder = tempfile::tempdir().unwrap();
    copy_context(folder.path());
    // Links the packages that npm would install; only the bundler's own cache folders belong to this test.
    let (theirs, ours) = (source::root().join("web/node_modules"), folder.path().join("web/node_modules"));
    std::fs::create_dir(&ours).unwrap();
    for entry in std::fs::read_dir(&theirs).unwrap().map(Result::unwrap) {
        if ![".bundled", ".package-lock.json", ".vite"].map(Some).contains(&entry.file_name().to_str()) {
            std::os::unix::fs::symlink(entry.path(), ours.join(entry.file_name())).unwrap();
        }
    }
    std::fs::write(ours.join(".package-lock.json"), "").unwrap();
    run(&mut Command::new(folder.path().join("build-web")));
    for made in ["web/dist/index.html", "web/desktop/dist/desktop.js", "web/desktop/dist/desktop.css"] {
        assert!(folder.path().join(made).is_file(), "{made} was not made");
    }
}

#[test]
fn outdated_node_is_reported_before_any_download() {
    for (version, is_good) in [
        ("v18.20.4", false),
        ("v20.18.9", false),
        ("v20.19.0", true),
        ("v21.7.3", false),
        ("v22.11.0", false),
        ("v22.12.0", true),
        ("v24.1.0", true),
        ("", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("node");
        std::fs::write(&node, format!("#!/bin/sh\necho {version}\n")).unwrap();
        std::fs::set_permissions(&node, std::fs::Permissions::from_mode(0o755)).unwrap();
        let output = Command::new(source::root().join("build-web"))
            .arg("--check-node")
            .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), is_good, "{version}: {said}");
        assert!(is_good || said.contains("20.19, 22.12 or later"), "{said}");
    }
}
