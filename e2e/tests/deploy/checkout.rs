//! A checkout of the repository in which nothing is compiled: cargo is a stub, and the programs are those already
//! built.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Output};

use e2e::{binary, free_port, images, source};

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

/// A checkout with what `./run` needs, and the tools it looks for.
pub(crate) struct Checkout {
    pub(crate) folder: tempfile::TempDir,
    user: u32,
    pub(crate) port: u16,
    /// The folder of built programs, below the checkout.
    target: &'static str,
}

/// Writes an executable file.
pub(crate) fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Checkout {
    /// A checkout that puts what it builds into another folder, and a server on a free port.
    pub(crate) fn new(user: u32) -> Self {
        Self::make(user, free_port(), "elsewhere")
    }

    /// A checkout of root's as it is cloned, with the default port.
    pub(crate) fn with_defaults() -> Self {
        Self::make(0, 8000, "target")
    }

    fn make(user: u32, port: u16, target: &'static str) -> Self {
        // The path must be short because Unix sockets are created below it.
        let folder = tempfile::Builder::new().prefix("cr").tempdir().unwrap();
        let path = folder.path();
        let release = path.join(target).join("release");
        for folder in [path.join(".ci"), path.join("bin"), path.join("home"), release.clone()] {
            fs::create_dir_all(folder).unwrap();
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
            let (built, ours) = (binary().with_file_name(name), release.join(name));
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
        Self { folder, user, port, target }
    }

    /// The variable `PATH` of whoever uses the checkout.
    pub(crate) fn search_path(&self) -> String {
        format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", self.folder.path().join("bin").display())
    }

    /// Runs `./run` with these arguments.
    fn run(&self, words: &[&str]) -> Output {
        let path = self.folder.path();
        let mut command = Command::new("/usr/bin/setpriv");
        command.args([format!("--reuid={}", self.user), format!("--regid={}", self.user)]);
        command.args(["--clear-groups", "env", "-i"]);
        command.arg(format!("PATH={}", self.search_path()));
        command.arg(format!("HOME={}", path.join("home").display()));
        command.arg(format!("CAISSON_IMAGES={}", images::default_images().display()));
        command.arg(format!("CAISSON_LISTEN=127.0.0.1:{}", self.port));
        command.arg(format!("CARGO_TARGET_DIR={}", self.target)).arg("no_proxy=kept.test");
        command.arg(path.join("run")).args(words);
        command.output().unwrap()
    }

    #[track_caller]
    pub(crate) fn expect(&self, words: &[&str], code: i32, text: &str) -> String {
        let output = self.run(words);
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "./run {words:?}: {said}{}", self.log());
        assert!(said.contains(text), "./run {words:?} does not say `{text}`: {said}");
        said
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("data/server.log")).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> String {
        fs::read_to_string(self.folder.path().join("data/server.pid")).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let _ = self.run(&["stop"]);
    }
}
