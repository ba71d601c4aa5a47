//! A Docker engine of a test, whose one image is busybox plus the libraries that the binary is linked with.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use e2e::{binary, source};
use serde_json::json;

use crate::TIMEOUT;

/// An ordinary user of the image.
pub(crate) const USER: u32 = 1000;
/// The busybox applets in the image.
const TOOLS: [&str; 8] = ["sh", "cat", "id", "ls", "grep", "sleep", "setsid", "kill"];

/// A Docker engine of this test, with one image.
pub(crate) struct Engine {
    pub(crate) folder: tempfile::TempDir,
    process: Child,
}

impl Engine {
    /// An engine without a network.
    pub(crate) fn start() -> Self {
        Self::start_as(Command::new("dockerd"), &["--bridge=none"])
    }

    /// An engine with a bridge for its containers, in a network namespace of its own: nothing of the host's network
    /// changes, and nobody else reaches the published ports.
    pub(crate) fn start_with_bridge() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && exec dockerd \"$@\"", "sh"]);
        Self::start_as(command, &["--ip-forward=false"])
    }

    fn start_as(mut dockerd: Command, network: &[&str]) -> Self {
        for (program, package) in
            [("dockerd", "docker.io"), ("docker", "docker.io"), ("busybox", "busybox-static")]
        {
            assert!(find(program).is_some(), "{program} is missing: apt-get install {package}");
        }
        // The path must be short because Unix sockets are created below it.
        let folder = tempfile::Builder::new().prefix("ce-").tempdir_in("/tmp").unwrap();
        let below = |name: &str| folder.path().join(name).display().to_string();
        let log = fs::File::create(folder.path().join("dockerd.log")).unwrap();
        let process = dockerd
            .args(["--host", &format!("unix://{}", below("docker.sock"))])
            .args(["--data-root", &below("root"), "--exec-root", &below("exec"), "--pidfile", &below("pid")])
            .args(["--iptables=false", "--ip6tables=false", "--storage-driver=vfs"])
            .args(network)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let engine = Self { folder, process };
        let end = Instant::now() + TIMEOUT;
        while !engine.docker(&["info"]).status.success() {
            let log = || fs::read_to_string(engine.folder.path().join("dockerd.log")).unwrap_or_default();
            assert!(Instant::now() < end, "the Docker engine does not start: {}", log());
            std::thread::yield_now();
        }
        engine.import();
        engine
    }

    /// The path of the network namespace of the engine.
    pub(crate) fn network(&self) -> String {
        format!("/proc/{}/ns/net", self.process.id())
    }

    pub(crate) fn docker(&self, arguments: &[&str]) -> Output {
        let socket = format!("unix://{}", self.folder.path().join("docker.sock").display());
        Command::new("docker").args(["--host", &socket]).args(arguments).output().unwrap()
    }

    fn import(&self) {
        let root = self.folder.path().join("image");
        for directory in ["usr/bin", "usr/lib64", "etc", "var/tmp", "tmp", "root", "home/user"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for open in ["tmp", "var/tmp"] {
            fs::set_permissions(root.join(open), fs::Permissions::from_mode(0o1777)).unwrap();
        }
        for name in ["bin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        fs::write(
            root.join("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n",
        )
        .unwrap();
        chown(root.join("home/user"), Some(USER), Some(USER)).unwrap();
        fs::copy(find("busybox").unwrap(), root.join("usr/bin/busybox")).unwrap();
        for tool in TOOLS {
            symlink("busybox", root.join("usr/bin").join(tool)).unwrap();
        }
        fs::copy(binary(), root.join("usr/bin/caisson")).unwrap();
        let linked = Command::new("ldd").arg(binary()).output().unwrap();
        let linked = String::from_utf8(linked.stdout).unwrap();
        for library in linked.split_whitespace().filter(|word| word.starts_with('/')) {
            let target = Path::new(library).strip_prefix("/").unwrap();
            let target = root.join(if target.starts_with("usr") { "" } else { "usr" }).join(target);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(library, target).unwrap();
        }
        let mut tar = Command::new("tar")
            .args(["--create", "--directory"])
            .arg(&root)
            .arg(".")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let socket = format!("unix://{}", self.folder.path().join("docker.sock").display());
        let imported = Command::new("docker")
            .args(["--host", &socket, "import", "-", "caisson-test:latest"])
            .stdin(tar.stdout.take().unwrap())
            .output()
            .unwrap();
        assert!(tar.wait().unwrap().success() && imported.status.success(), "{imported:?}");
    }

    /// Runs the binary in a new container with Docker's defaults.
    pub(crate) fn caisson(&self, user: u32, arguments: &[&str]) -> Output {
        self.in_container(user, &[&["caisson"], arguments].concat())
    }

    /// Runs a command in a new container in which a server is already running.
    pub(crate) fn caisson_with_server(&self, user: u32, words: &str) -> Output {
        let script = format!(
            "caisson serve 2> /tmp/log & for _ in $(cat /given/tries); do \
             caisson sandboxes list > /tmp/list 2>&1 && exec caisson {words}; sleep 0.1; done; cat /tmp/log"
        );
        let tries: Vec<String> = (0..600).map(|number| number.to_string()).collect();
        fs::write(self.folder.path().join("work/tries"), tries.join(" ")).unwrap();
        self.in_container(user, &["sh", "-c", &script])
    }

    fn in_container(&self, user: u32, command: &[&str]) -> Output {
        let home = if user == 0 { "HOME=/root" } else { "HOME=/home/user" };
        let mount = format!("{}:/given:ro", self.folder.path().join("work").display());
        let user = format!("{user}:{user}");
        let fixed = [
            "run",
            "--rm",
            "--network",
            "none",
            "--user",
            &user,
            "--env",
            home,
            "--volume",
            &mount,
            "--workdir",
            "/tmp",
        ];
        self.docker(&[&fixed[..], &["caisson-test"], command].concat())
    }

    /// Runs the binary in a container with the options of `deploy/compose/compose.yaml`.
    pub(crate) fn caisson_in_compose_container(&self, arguments: &[&str]) -> Output {
        let compose = source::root().join("deploy/compose");
        let text = fs::read_to_string(compose.join("compose.yaml")).unwrap();
        let mut options: Vec<String> = vec!["run".into(), "--rm".into()];
        options.extend(options_of(&text, &compose));
        let mount = |name: &str, target: &str| {
            let folder = self.folder.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            ["--volume".to_owned(), format!("{}:{target}", folder.display())]
        };
        options.extend(mount("data", "/var/lib/caisson"));
        options.extend(mount("work", "/given:ro"));
        options.extend(["--workdir", "/tmp", "caisson-test", "caisson"].map(String::from));
        let all: Vec<&str> = options.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        self.docker(&all)
    }

    pub(crate) fn write_steps(&self, command: &str) {
        let work = self.folder.path().join("work");
        fs::create_dir_all(&work).unwrap();
        let steps = json!([{"tool": "shell", "command": command}]);
        fs::write(work.join("steps.json"), steps.to_string()).unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let ours = self.folder.path().display().to_string();
        for target in
            mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|t| t.starts_with(&ours))
        {
            let _ = Command::new("umount").args(["-l", target]).status();
        }
    }
}

/// Translates a compose file to options of `docker run`: capabilities, security options, network, cgroups, mounts.
/// Reads only this one file's subset of the format.
fn options_of(compose: &str, folder: &Path) -> Vec<String> {
    let lines: Vec<&str> =
        compose.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let value = |key: &str| {
        let found = lines.iter().find_map(|line| line.strip_prefix(&format!("{key}:")));
        found.unwrap_or_else(|| panic!("compose.yaml has no {key}")).trim().to_owned()
    };
    let words = |key: &str| -> Vec<String> {
        let list = value(key);
        list.trim_matches(['[', ']']).split(',').map(|word| word.trim().to_owned()).collect()
    };
    let items = |key: &str| -> Vec<String> {
        let start = lines.iter().position(|line| *line == format!("{key}:")).unwrap();
        let items = lines[start + 1..].iter().map_while(|line| line.strip_prefix("- "));
        items.map(|item| item.trim_matches('"').to_owned()).collect()
    };
    let mut options = Vec::new();
    let mut add = |option: &str, value: String| options.extend([option.to_owned(), value]);
    add("--network", value("network_mode"));
    add("--cgroupns", value("cgroup"));
    words("cap_drop").into_iter().for_each(|name| add("--cap-drop", name));
    words("cap_add").into_iter().for_each(|name| add("--cap-add", name));
    for option in items("security_opt") {
        let option = match option.strip_prefix("seccomp:") {
            Some(file) => format!("seccomp={}", folder.join(file).display()),
            None => option,
        };
        add("--security-opt", option);
    }
    items("device_cgroup_rules").into_iter().for_each(|rule| add("--device-cgroup-rule", rule));
    for volume in items("volumes") {
        // The test has its own data volume.
        if volume.starts_with('/') {
            add("--volume", volume);
        } else if let Some(file) = volume.strip_prefix("./") {
            add("--volume", folder.join(file).display().to_string());
        }
    }
    options
}

fn find(program: &str) -> Option<PathBuf> {
    ["/usr/sbin", "/usr/bin", "/usr/local/bin", "/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(program))
        .find(|path| path.exists())
}

pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
