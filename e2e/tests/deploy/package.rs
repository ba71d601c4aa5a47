//! Installs, upgrades, removes and purges the Debian package with dpkg in a temporary root file system, where a fake
//! systemctl records its arguments.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use e2e::{binary, images, source};

use super::run;

/// The Debian 13 versions of the package's dependencies.
const INSTALLED: [(&str, &str); 4] =
    [("libc6", "2.41-12"), ("libgcc-s1", "14.2.0-19"), ("e2fsprogs", "1.47.2-3"), ("mount", "2.41-5")];

/// Builds the package.
fn build(out: &Path) -> PathBuf {
    let package = run(Command::new(source::root().join("deploy/debian/build"))
        .arg("--binary")
        .arg(binary())
        .arg("--out")
        .arg(out)
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none"));
    PathBuf::from(package.trim())
}

/// The same package with a later version and one more line in its configuration.
fn later(package: &Path, out: &Path) -> PathBuf {
    let (tree, later) = (out.join("later"), out.join("later.deb"));
    run(Command::new("dpkg-deb").arg("-R").arg(package).arg(&tree));
    let control = fs::read_to_string(tree.join("DEBIAN/control")).unwrap();
    let control: Vec<String> = control
        .lines()
        .map(|line| if line.starts_with("Version: ") { "Version: 99.0".into() } else { line.to_owned() })
        .collect();
    fs::write(tree.join("DEBIAN/control"), control.join("\n") + "\n").unwrap();
    let configuration = tree.join("etc/caisson/caisson.toml");
    let text = fs::read_to_string(&configuration).unwrap();
    fs::write(&configuration, text + "# of the later version\n").unwrap();
    run(Command::new("dpkg-deb").args(["-Znone", "--root-owner-group", "-b"]).arg(&tree).arg(&later));
    later
}

struct Machine {
    root: PathBuf,
}

impl Machine {
    fn new(root: PathBuf) -> Self {
        images::make_small_root(&root);
        for folder in
            ["dev", "run/systemd/system", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log", "tmp"]
        {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for name in ["rmdir", "tr"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        for (name, log) in
            [("systemctl", "systemctl.log"), ("apparmor_parser", "apparmor.log"), ("aa-enabled", "aa.log")]
        {
            let program = root.join("bin").join(name);
            fs::write(&program, format!("#!/bin/sh\necho \"$*\" >> /{log}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let machine = Self { root };
        machine.has(&INSTALLED);
        machine
    }

    /// Records these packages as installed in dpkg's database.
    fn has(&self, packages: &[(&str, &str)]) {
        let architecture = run(Command::new("dpkg").arg("--print-architecture"));
        let entry = |(name, version): &(&str, &str)| {
            format!(
                "Package: {name}\nStatus: install ok installed\nMaintainer: nobody\nArchitecture: {}\nVersion: {version}\n\
                 Description: is there\n",
                architecture.trim()
            )
        };
        let entries: Vec<String> = packages.iter().map(entry).collect();
        fs::write(self.root.join("var/lib/dpkg/status"), entries.join("\n")).unwrap();
        for (name, _) in packages {
            fs::write(self.root.join(format!("var/lib/dpkg/info/{name}.list")), "/.\n").unwrap();
        }
    }

    fn dpkg(&self, words: &[&str]) -> Output {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", self.root.display())).args(["--force-confold", "--log=/dev/null"]);
        command.args(words).env("PATH", "/bin:/usr/bin:/sbin:/usr/sbin").env("LC_ALL", "C").output().unwrap()
    }

    /// Runs dpkg, which must succeed; returns the calls of systemctl during that.
    #[track_caller]
    fn expect(&self, words: &[&str]) -> Vec<String> {
        let log = self.root.join("systemctl.log");
        let _ = fs::remove_file(&log);
        let output = self.dpkg(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        fs::read_to_string(log).unwrap_or_default().lines().map(ToOwned::to_owned).collect()
    }

    /// Makes the processes of this host visible in the root file system.
    fn with_processes(&self) -> Processes {
        let place = self.root.join("proc");
        fs::create_dir_all(&place).unwrap();
        run(Command::new("mount").args(["-t", "proc", "proc"]).arg(&place));
        Processes(place)
    }

    /// Installs an AppArmor version that supports user namespaces.
    fn with_new_apparmor(&self) {
        let abi = self.root.join("etc/apparmor.d/abi/4.0");
        fs::create_dir_all(abi.parent().unwrap()).unwrap();
        fs::write(abi, "").unwrap();
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }
}

/// A mounted `/proc`.
struct Processes(PathBuf);

impl Drop for Processes {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn package_removal_names_the_running_sandboxes() {
    let folder = tempfile::tempdir().unwrap();
    let package = build(folder.path());
    let machine = Machine::new(folder.path().join("root"));
    machine.expect(&["-i", package.to_str().unwrap()]);
    let _processes = machine.with_processes();
    // Ends by itself if the test does not get to kill it.
    let mut launcher = Command::new("sleep")
        .arg0("/var/lib/caisson/bin/launcher-0123456789abcdef")
        .arg("300")
        .spawn()
        .unwrap();
    let removed = machine.dpkg(&["-r", "caisson"]);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let said = String::from_utf8_lossy(&removed.stderr).into_owned();
    assert!(removed.status.success(), "{said}");
    let kill =
        said.split("to stop them: kill").nth(1).unwrap_or_else(|| panic!("the process is not named: {said}"));
    let named: Vec<&str> = kill.lines().next().unwrap().split_whitespace().collect();
    assert!(named.contains(&launcher.id().to_string().as_str()), "{said}");
}

#[test]
fn package_can_be_installed_upgraded_removed_and_purged() {
    let folder = tempfile::tempdir().unwrap();
    let package = build(folder.path());
    let later = later(&package, folder.path());
    let (package, later) = (package.to_str().unwrap(), later.to_str().unwrap());
    let machine = Machine::new(folder.path().join("root"));
    machine.with_new_apparmor();

    let told = machine.expect(&["-i", package]);
    assert_eq!(told, ["daemon-reload", "try-restart caisson.service"], "nothing is started that did not run");
    assert!(machine.root.join("usr/bin/caisson").is_file());
    let loaded = machine.text("apparmor.log").unwrap();
    assert_eq!(loaded, "-r -W /etc/apparmor.d/caisson\n-r -W /etc/apparmor.d/caisson-sandbox\n");
    // The operator's changes and the jobs' data stay.
    let configuration = "etc/caisson/caisson.toml";
    fs::write(machine.root.join(configuration), "log = \"debug\"\n").unwrap();
    fs::create_dir_all(machine.root.join("var/lib/caisson/jobs")).unwrap();

    let told = machine.expect(&["-i", later]);
    assert_eq!(told.last().unwrap(), "try-restart caisson.service");
    assert!(!told.iter().any(|line| line.contains("disable")), "an upgrade lets the server run: {told:?}");
    assert_eq!(machine.text(configuration).as_deref(), Some("log = \"debug\"\n"));

    let told = machine.expect(&["-r", "caisson"]);
    assert_eq!(told, ["disable --now caisson.service", "daemon-reload"]);
    assert!(!machine.root.join("usr/bin/caisson").exists());
    assert!(!machine.root.join("etc/apparmor.d/caisson").exists(), "it names a program that is gone");
    assert!(machine.text(configuration).is_some(), "a removal keeps what the operator has written");

    machine.expect(&["-P", "caisson"]);
    assert!(
        !machine.root.join("etc/caisson").exists()
            && !machine.root.join("etc/apparmor.d/caisson-sandbox").exists()
    );
    assert!(machine.root.join("var/lib/caisson/jobs").is_dir(), "jobs are the operator's");
    assert!(!machine.root.join("usr/share/doc/caisson").exists());
}

#[test]
fn old_apparmor_does_not_get_the_userns_profile() {
    let folder = tempfile::tempdir().unwrap();
    let package = build(folder.path());
    let machine = Machine::new(folder.path().join("root"));
    machine.expect(&["-i", package.to_str().unwrap()]);
    assert_eq!(machine.text("apparmor.log").as_deref(), Some("-r -W /etc/apparmor.d/caisson-sandbox\n"));
    assert!(!machine.root.join("etc/apparmor.d/caisson").exists(), "apparmor.service would fail");
    // The machine and then the package are upgraded.
    machine.with_new_apparmor();
    machine.expect(&["-i", package.to_str().unwrap()]);
    assert!(machine.text("etc/apparmor.d/caisson").unwrap().contains("userns,"));
}

#[test]
fn package_is_refused_if_glibc_is_too_old_for_the_binary() {
    let folder = tempfile::tempdir().unwrap();
    let package = build(folder.path());
    let machine = Machine::new(folder.path().join("root"));
    let mut old = INSTALLED;
    old[0].1 = "2.2-1";
    machine.has(&old);
    let output = machine.dpkg(&["-i", package.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("libc6"), "{said}");
    // The dependency is exactly the glibc version of the newest symbol that the binary needs.
    let symbols = run(Command::new("objdump").arg("-T").arg(binary()));
    let newest = symbols
        .split("GLIBC_2.")
        .skip(1)
        .filter_map(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u32>().ok())
        .max()
        .unwrap();
    let depends = run(Command::new("dpkg-deb").arg("-f").arg(&package).arg("Depends"));
    assert!(depends.contains(&format!("libc6 (>= 2.{newest})")), "{depends} and not 2.{newest}");
}

#[test]
fn lintian_finds_no_errors_in_the_package_and_its_binary_is_stripped() {
    let folder = tempfile::tempdir().unwrap();
    let package = build(folder.path());
    let mut lintian = Command::new("lintian");
    // Only tests build a package without compression.
    let uncompressed = "uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball";
    lintian.args(["--allow-root", "--fail-on", "error", "--suppress-tags", uncompressed]).arg(&package);
    let output =
        lintian.env("LC_ALL", "C.UTF-8").output().expect("lintian is missing: apt-get install lintian");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(folder.path().join("tree")));
    let binary = folder.path().join("tree/usr/bin/caisson");
    let sections = run(Command::new("readelf").args(["--sections", "--wide"]).arg(binary));
    assert!(sections.contains(" .text ") && !sections.contains(" .symtab "), "{sections}");
    assert!(!sections.contains(".debug_info"), "{sections}");
}

#[test]
fn files_linked_from_the_package_readme_are_in_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let package = build(folder.path());
    let tree = folder.path().join("tree");
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&tree));
    let documents = tree.join("usr/share/doc/caisson");
    let readme = fs::read_to_string(documents.join("README.md")).unwrap();
    let mut looked_at = 0;
    for link in readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        if link.starts_with("http") || link.starts_with('#') {
            continue;
        }
        assert!(documents.join(link).exists(), "the README leads to {link}, which is not in the package");
        looked_at += 1;
    }
    assert!(looked_at > 15, "only {looked_at} links were looked at");
    // Files that cannot work without the sources are not in the package.
    assert!(!documents.join("compose/compose.yaml").exists());
    assert!(documents.join("compose/seccomp.json").is_file());
}

#[test]
fn systemd_accepts_every_line_of_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(source::root().join("deploy/systemd/caisson.service")).unwrap();
    let path = folder.path().join("caisson.service");
    let verify = |text: &str| -> String {
        fs::write(&path, text.replace("/usr/bin/caisson", &binary().display().to_string())).unwrap();
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&path).env("LC_ALL", "C");
        let output = command.output().expect("systemd-analyze is missing: apt-get install systemd");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours = said.lines().filter(|line| line.contains("caisson.service"));
        ours.map(|line| format!("{line}\n")).collect()
    };
    assert_eq!(verify(&unit), "");
    let wrong = verify(&unit.replace("KillMode=process", "KillMode=proces\nDelegates=yes"));
    assert!(wrong.contains("kill mode") && wrong.contains("Delegates"), "it finds nothing: {wrong}");
}
