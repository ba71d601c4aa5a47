//! `./run` as root and as an ordinary user with sudo: twice, because the second start finds other things in place.
//! Nothing is compiled: cargo is a stub, and the binary is the one already built.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Output};

use e2e::{binary, free_port, images, source};

/// A user id that no user of the host has.
const UID: u32 = 60_125;
const NOOP_SCRIPT: &str = "#!/bin/sh\n";
const RUSTC: &str = "#!/bin/sh\necho rustc 999.0.0\n";
/// A fake sudo: switches the user and keeps only the variables that were named.
const SUDO: &str = r#"#!/bin/bash
kept=()
[ "$1" != -n ] || shift
case "$1" in
  --preserve-env=*)
    IFS=, read -ra names <<<"${1#*=}"
    for name in "${names[@]}"; do kept+=("$name=${!name}"); done
    shift
    ;;
esac
exec "$(dirname "$0")/become" --reuid=0 --regid=0 --clear-groups env -i PATH="$PATH" HOME=/root "${kept[@]}" "$@"
"#;

/// Runs the program beside it after half a second during which its command line is different.
const SLOW_EXEC_WRAPPER: &str = r#"#!/bin/bash
export PROGRAM="$(dirname "$0")/../caisson" WORDS="$*"
[ "$1" = serve ] || exec "$PROGRAM" "$@"
exec -a loading bash -c 'sleep 0.5; exec "$PROGRAM" $WORDS'
"#;

/// A checkout with what `./run` needs, and the tools it looks for.
struct Checkout {
    folder: tempfile::TempDir,
    user: u32,
    port: u16,
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Checkout {
    fn new(user: u32) -> Self {
        // The path must be short because Unix sockets are created below it.
        let folder = tempfile::Builder::new().prefix("cr").tempdir().unwrap();
        let path = folder.path();
        for name in [".ci", "bin", "home", "elsewhere/release"] {
            fs::create_dir_all(path.join(name)).unwrap();
        }
        for name in ["run", ".ci/setup", "Cargo.toml"] {
            fs::copy(source::root().join(name), path.join(name)).unwrap();
        }
        for (name, text) in
            [("build-web", NOOP_SCRIPT), ("bin/cargo", NOOP_SCRIPT), ("bin/rustc", RUSTC), ("bin/sudo", SUDO)]
        {
            program(&path.join(name), text);
        }
        for name in ["caisson", "build-image"] {
            let (built, ours) = (binary().with_file_name(name), path.join("elsewhere/release").join(name));
            if fs::hard_link(&built, &ours).is_err() {
                fs::copy(&built, &ours).unwrap();
            }
        }
        let setuid_helper = path.join("bin/become");
        fs::copy("/usr/bin/setpriv", &setuid_helper).unwrap();
        // Nobody else may reach this setuid program.
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        if user != 0 {
            fs::set_permissions(&setuid_helper, fs::Permissions::from_mode(0o4755)).unwrap();
            chown(path.join("home"), Some(user), Some(user)).unwrap();
            chown(path, Some(user), Some(user)).unwrap();
        }
        Self { folder, user, port: free_port() }
    }

    /// Runs `./run` with these arguments.
    fn run(&self, words: &[&str]) -> Output {
        let path = self.folder.path();
        let mut command = Command::new("/usr/bin/setpriv");
        command.args([format!("--reuid={}", self.user), format!("--regid={}", self.user)]);
        command.args(["--clear-groups", "env", "-i"]);
        command.arg(format!("PATH={}:/usr/bin:/bin:/usr/sbin:/sbin", path.join("bin").display()));
        command.arg(format!("HOME={}", path.join("home").display()));
        command.arg(format!("CAISSON_IMAGES={}", images::default_images().display()));
        command.arg(format!("CAISSON_LISTEN=127.0.0.1:{}", self.port));
        command.args(["CARGO_TARGET_DIR=elsewhere", "no_proxy=kept.test"]);
        command.arg(path.join("run")).args(words);
        command.output().unwrap()
    }

    #[track_caller]
    fn expect(&self, words: &[&str], code: i32, text: &str) -> String {
        let output = self.run(words);
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "./run {words:?}: {said}{}", self.log());
        assert!(said.contains(text), "./run {words:?} does not say `{text}`: {said}");
        said
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("data/server.log")).unwrap_or_default()
    }

    fn pid(&self) -> String {
        fs::read_to_string(self.folder.path().join("data/server.pid")).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let _ = self.run(&["stop"]);
    }
}

#[track_caller]
fn starts_and_stops_twice(user: u32) {
    let checkout = Checkout::new(user);
    let url = format!("http://127.0.0.1:{}", checkout.port);
    checkout.expect(&["status"], 1, "not running");
    for _ in 0..2 {
        let said = checkout.expect(&["start"], 0, &format!("running on {url} (pid "));
        assert!(said.contains("default is up to date"), "the image was looked for elsewhere: {said}");
        assert!(
            said.contains("image: default is up to date"),
            "no image was built beside the compiler: {said}"
        );
        let pid = checkout.pid();
        checkout.expect(&["status"], 0, &format!("running: pid {pid}, {url}"));
        checkout.expect(&["start"], 0, &format!("already running on {url}"));
        assert_eq!(checkout.pid(), pid, "it was started anew");
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        assert!(environment.contains("no_proxy=kept.test"), "{environment}");
        let owner = fs::metadata(format!("/proc/{pid}")).unwrap().uid();
        assert_eq!(owner, 0, "the server is not root's");
        checkout.expect(&["stop"], 0, &format!("stopped (pid {pid})"));
        checkout.expect(&["status"], 1, "not running");
    }
    let data = fs::metadata(checkout.folder.path().join("data")).unwrap();
    assert_eq!((data.uid(), data.mode() & 0o777), (user, 0o700));
    checkout.expect(&["stop"], 0, "no server of ./run is running");
}

#[test]
fn run_script_starts_and_stops_a_server_twice_as_root() {
    starts_and_stops_twice(0);
}

#[test]
fn run_script_starts_and_stops_a_server_twice_with_sudo() {
    starts_and_stops_twice(UID);
}

#[test]
fn run_script_reports_why_a_server_cannot_start() {
    let checkout = Checkout::new(0);
    let taken = TcpListener::bind(("127.0.0.1", checkout.port)).unwrap();
    checkout.expect(&["start"], 1, "is taken by another program");
    drop(taken);
    fs::create_dir(checkout.folder.path().join("data/caisson.db")).unwrap();
    let said = checkout.expect(&["start"], 1, "the server has ended; its log is");
    assert!(said.contains("caisson.db"), "{said}");
    checkout.expect(&["restart"], 1, "unknown: restart (./run, ./run start, ./run stop, ./run status)");
}

/// While the kernel loads a large program, its command line cannot be read yet.
#[test]
fn run_script_waits_while_the_command_line_is_unreadable() {
    let checkout = Checkout::new(0);
    let elsewhere = checkout.folder.path().join("elsewhere");
    fs::rename(elsewhere.join("release/caisson"), elsewhere.join("caisson")).unwrap();
    program(&elsewhere.join("release/caisson"), SLOW_EXEC_WRAPPER);
    checkout.expect(&["start"], 0, "running on http://");
    checkout.expect(&["stop"], 0, "stopped (pid ");
}
