//! `image/Dockerfile` and `caisson image build` produce the same content. The test starts its own engine and runs a
//! real build from an imported base image, since CI cannot reach an image registry.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use e2e::images::default_images;
use e2e::{source, wait_until};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The host's CA certificates on Debian.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A Docker engine with its own folder. Dropping it removes everything it has created.
struct Engine {
    folder: TempDir,
    process: Child,
}

impl Engine {
    fn start() -> Self {
        // Not in /tmp, which may be a tmpfs: the image takes several GiB.
        let folder = tempfile::Builder::new().prefix("caisson-docker-").tempdir_in("/var/tmp").unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let log = File::create(folder.path().join("dockerd.log")).unwrap();
        let process = Command::new("dockerd")
            .args(["--data-root", &path("data"), "--exec-root", &path("exec"), "--pidfile", &path("pid")])
            .args(["--host", &format!("unix://{}", path("docker.sock"))])
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dockerd is missing: apt-get install docker.io");
        let engine = Self { folder, process };
        wait_until("the engine answers", || {
            engine
                .docker(&["version"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|s| s.success())
        });
        engine
    }

    fn docker(&self, words: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.arg("--host").arg(format!("unix://{}", self.folder.path().join("docker.sock").display()));
        // The legacy builder, which every engine has without a plugin.
        command.args(words).env("DOCKER_BUILDKIT", "0").stdin(Stdio::null());
        command
    }

    /// Runs a docker command, which must succeed, and returns its output.
    #[track_caller]
    fn run(&self, words: &[&str]) -> String {
        let output = self.docker(words).output().expect("docker is missing: apt-get install docker.io");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "docker {words:?}\n{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    /// Imports a minimal Debian.
    fn import_base(&self, name: &str) {
        let archive = self.folder.path().join("base.tar");
        let included = "--include=ca-certificates,debian-archive-keyring";
        let status = Command::new("mmdebstrap")
            .args(["--quiet", "--variant=minbase", included, "trixie"])
            .arg(&archive)
            .status()
            .expect("mmdebstrap is missing: apt-get install mmdebstrap");
        assert!(status.success(), "mmdebstrap: {status}");
        self.run(&["import", &archive.display().to_string(), name]);
        fs::remove_file(archive).unwrap();
    }

    /// The build context: the recipe, plus what a build on this host needs.
    fn context(&self) -> PathBuf {
        let context = self.folder.path().join("context");
        let copied =
            Command::new("cp").arg("-r").arg(source::root().join("image")).arg(&context).status().unwrap();
        assert!(copied.success());
        fs::create_dir_all(context.join("access")).unwrap();
        if Path::new(CERTIFICATES).exists() {
            fs::copy(CERTIFICATES, context.join("access/ca.crt")).unwrap();
        }
        // Reuses the packages that ./test has downloaded for the other build.
        if let Some(packages) = std::env::var_os("CAISSON_TEST_PACKAGES") {
            let copied =
                Command::new("cp").arg("-r").arg(packages).arg(context.join("access/archives")).status();
            assert!(copied.unwrap().success());
            let _ = fs::remove_dir_all(context.join("access/archives/partial"));
        }
        context
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("dockerd.log")).unwrap_or_default();
            eprintln!("---- log of the engine ----\n{}", &log[log.len().saturating_sub(4000)..]);
        }
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
        // The engine may leave these mounts behind; they must go before the folder can be removed.
        for left in ["exec/netns/default", "data"] {
            let _ = unmount(self.folder.path().join(left), UnmountFlags::DETACH);
        }
    }
}

/// The names in a list of `name=version` lines.
fn names(list: &str) -> BTreeSet<&str> {
    list.lines().filter_map(|line| line.split('=').next()).collect()
}

#[test]
fn docker_build_accepts_an_empty_package_folder() {
    let made = "mount -t tmpfs none /run && mkdir /run/caisson-build && cp -r \"$0\" /run/caisson-build/recipe \
        && mkdir -p /run/caisson-build/recipe/access/archives";
    // The commands that the Dockerfile runs.
    let used = ". /run/caisson-build/recipe/docker-access && echo \"$CAISSON_SECURITY_MIRROR\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &format!("{made} && {used}")])
        .arg(source::root().join("image"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.trim().ends_with("-security"), "{said}{output:?}");
}

#[test]
fn docker_build_and_image_build_install_the_same_packages() {
    let root = default_images().join("default/rootfs");
    let engine = Engine::start();
    engine.import_base("trixie-base");
    let context = engine.context().display().to_string();
    engine.run(&[
        "build",
        "--network",
        "host",
        "--build-arg",
        "BASE=trixie-base",
        "--tag",
        "caisson/agent",
        &context,
    ]);
    let inside = |command: &str| {
        engine.run(&["run", "--rm", "--network", "none", "caisson/agent", "sh", "-c", command])
    };
    for list in ["python.txt", "node.txt", "files.txt"] {
        let own = fs::read_to_string(root.join("usr/share/caisson").join(list)).unwrap();
        assert_eq!(inside(&format!("cat /usr/share/caisson/{list}")), own, "{list}");
    }
    // Compares names only: Debian's mirrors may have changed between the two builds.
    let own = fs::read_to_string(root.join("usr/share/caisson/packages.txt")).unwrap();
    let other = inside("cat /usr/share/caisson/packages.txt");
    assert!(own.lines().count() > 100, "{own}");
    assert_eq!(names(&other), names(&own));
    assert_eq!(
        inside("id -un; echo $HOME; pwd; ls -d /run/caisson-build 2>/dev/null || true"),
        "agent\n/home/agent\n/workspace\n"
    );
    assert_eq!(inside("python3 -c 'import numpy; print(6 * 7)'; deno eval 'console.log(6 * 7)'"), "42\n42\n");
}
