//! Conformance tests of the namespace backend, and tests of its own guarantees.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod namespace_host;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use launcher::launch_file::LaunchFileContents;
use namespace_host::{Host, program};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use sandbox::conformance::{Guest, make, remove, spec};
use sandbox::namespace::NamespaceBackend;
use sandbox::{Backend, CheckState, EndReason, Image, Limit, LimitKind, Phase, SandboxError, SandboxId};

/// The output of `ls -A` for four empty directories.
const EMPTY: &str = "/app:\n\n/tmp:\n\n/var/tmp:\n\n/workspace:";

sandbox::conformance_suite!(Host::new());

#[tokio::test]
async fn host_passes_preflight_and_failed_checks_have_remedies() {
    let host = Host::new();
    let capabilities = host.backend.preflight().await.unwrap();
    assert!(capabilities.enforced.contains(&LimitKind::Disk), "{:?}", capabilities.checks);
    for check in capabilities.checks {
        assert!(check.state == CheckState::Good || check.remedy.is_some(), "{check:?}");
    }
}

#[tokio::test]
async fn the_cpu_quota_is_set() {
    let host = Host::new();
    let id = make(&host, &spec()).await;
    let quota = Host::group(id).directories().into_iter().find_map(|directory| {
        fs::read_to_string(directory.join("cpu.cfs_quota_us"))
            .or_else(|_| fs::read_to_string(directory.join("cpu.max")))
            .ok()
    });
    assert!(quota.unwrap().starts_with("150000"));
    remove(&host, id).await;
}

#[tokio::test]
async fn host_image_contains_no_host_users() {
    let host = Host::new();
    let id = make(&host, &spec()).await;
    let guest = Guest::of(&host.backend, id).await;
    assert_eq!(guest.expect("ls /home").await, "agent");
    assert_eq!(
        guest.expect("ls -A /home/agent /home/agent/.local /opt /srv /mnt").await,
        "/home/agent:\n.local\n\n/home/agent/.local:\nbin\nlib\n\n/mnt:\n\n/opt:\n\n/srv:"
    );
    for path in [
        "/root",
        "/etc/shadow",
        "/etc/ssh",
        "/etc/sudoers",
        "/etc/ssl/private",
        "/boot",
        "/sys/kernel",
        "/work",
    ] {
        assert_ne!(guest.run(&format!("ls {path}")).await.end, protocol::ExecEnd::Code(0), "{path} is there");
    }
    assert_eq!(guest.expect("getent passwd agent | cut -d: -f3,6").await, "1000:/home/agent");
    assert_eq!(guest.expect("stat -c %u /usr /etc /usr/bin/env").await, "0\n0\n0");
    assert_eq!(guest.expect("hostname 2>/dev/null || cat /proc/sys/kernel/hostname").await, "caisson");
    remove(&host, id).await;
}

#[tokio::test]
async fn ordinary_programs_work() {
    let host = Host::new();
    let mut spec = spec();
    spec.limits.memory_mib = Limit::Required(1024);
    let id = make(&host, &spec).await;
    let guest = Guest::of(&host.backend, id).await;
    assert_eq!(guest.expect("bash -c 'echo $((6*7))'").await, "42");
    let threads = "import threading,subprocess;t=threading.Thread(target=lambda:print(7));t.start();t.join();\
        print(subprocess.check_output(['echo','8']).decode().strip())";
    assert_eq!(guest.expect(&format!("/usr/bin/python3 -c \"{threads}\"")).await, "7\n8");
    assert_eq!(guest.expect("git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m m && git log --format=%s").await, "m");
    assert_eq!(
        guest.expect("printf 'int main(void){return 0;}' > a.c && gcc a.c && ./a.out && echo built").await,
        "built"
    );
    assert_eq!(guest.expect("node -e 'console.log(1+1)'").await, "2");
    assert_eq!(guest.expect("mkfifo pipe; (echo through > pipe &) ; cat pipe").await, "through");
    assert_eq!(guest.expect("mv /workspace/a.c /tmp/b.c && ls /tmp/b.c").await, "/tmp/b.c");
    remove(&host, id).await;
}

#[tokio::test]
async fn extra_certificates_are_trusted_inside() {
    let host = Host::new();
    let mut spec = spec();
    spec.extra_ca = ["-----BEGIN CERTIFICATE-----\nEXTRA\n-----END CERTIFICATE-----".into()].into();
    let id = make(&host, &spec).await;
    let guest = Guest::of(&host.backend, id).await;
    assert_eq!(guest.expect("grep -c ^EXTRA$ /etc/ssl/certs/ca-certificates.crt").await, "1");
    remove(&host, id).await;
}

#[tokio::test]
async fn directory_image_is_not_modified() {
    let host = Host::new();
    let image = host.directory.path().join("image");
    for directory in ["bin", "etc", "tmp"] {
        fs::create_dir_all(image.join(directory)).unwrap();
    }
    copy_with_libraries("/bin/sh", &image);
    let before = names(&image);
    let mut spec = spec();
    spec.image = Image::Directory(image.clone());
    let id = make(&host, &spec).await;
    let guest = Guest::of(&host.backend, id).await;
    assert_eq!(
        guest.expect("echo inside > /workspace/file; cd /app; read line < file; echo $line").await,
        "inside"
    );
    remove(&host, id).await;
    assert_eq!(names(&image), before);
}

fn names(directory: &Path) -> BTreeSet<OsString> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

/// Copies a program and its shared libraries to the same paths below another root.
fn copy_with_libraries(program: &str, root: &Path) {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
    for path in libraries.chain([program]) {
        let target = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(path, target).unwrap();
    }
}

#[tokio::test]
async fn image_with_symlinked_workspace_is_refused() {
    let host = Host::new();
    let image = host.directory.path().join("image");
    fs::create_dir_all(&image).unwrap();
    std::os::unix::fs::symlink("/etc", image.join("workspace")).unwrap();
    let mut spec = spec();
    spec.image = Image::Directory(image);
    let id = SandboxId::generate();
    let error = host.backend.create(id, &spec).await.unwrap_err();
    let SandboxError::Setup { step, .. } = &error else { panic!("{error:?}") };
    assert!(step.contains("/workspace"), "{step}");
    remove(&host, id).await;
}

#[tokio::test]
async fn sandbox_of_an_earlier_version_is_reported_lost_and_ended() {
    let host = Host::new();
    let id = SandboxId::generate();
    host.backend.create(id, &spec()).await.unwrap();
    let launcher = Pid::from_raw(host.launcher_pid(id)).unwrap();
    let launcher = pidfd_open(launcher, PidfdFlags::empty()).unwrap();
    fs::rename(host.sandbox(id).join("launch.jsonl"), host.sandbox(id).join("launch.json")).unwrap();
    let Phase::Ended(ended) = host.backend.observe(id).await.unwrap().phase else { panic!("not told") };
    assert_eq!(ended.reason, EndReason::Lost);
    assert!(ended.detail.contains("earlier, incompatible version"), "{}", ended.detail);
    remove(&host, id).await;
    // Checked with a pidfd: a process that has ended has a directory in /proc until its parent reaps it.
    let ended = poll(&mut [PollFd::new(&launcher, PollFlags::IN)], Some(&Timespec::default())).unwrap();
    assert_eq!(ended, 1, "the launcher lives on");
}

#[tokio::test]
async fn dead_standby_launcher_is_replaced_and_its_sandboxes_live_on() {
    let host = Host::new();
    let first = make(&host, &spec()).await;
    let parent = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        line.trim().parse::<i32>().unwrap()
    };
    let standby = parent(host.launcher_pid(first));
    kill_process(Pid::from_raw(standby).unwrap(), Signal::KILL).unwrap();
    let second = make(&host, &spec()).await;
    assert_ne!(parent(host.launcher_pid(second)), standby);
    for id in [first, second] {
        Guest::of(&host.backend, id).await.expect("true").await;
        remove(&host, id).await;
    }
}

#[tokio::test]
async fn idle_sandbox_returns_memory() {
    // The memory that guest and launcher keep while idle; right after a command it is 2,800 and 1,200.
    const MOST_IDLE_KIB: [u64; 2] = [2000, 800];
    let host = Host::new();
    let id = make(&host, &spec()).await;
    Guest::of(&host.backend, id).await.expect("true").await;
    let mapped_kib = || {
        [host.guest_pid(id), host.launcher_pid(id)].map(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        })
    };
    let end = Instant::now() + Duration::from_secs(60);
    while mapped_kib().iter().zip(MOST_IDLE_KIB).any(|(mapped, most)| *mapped > most) {
        assert!(Instant::now() < end, "guest and launcher keep {:?} KiB", mapped_kib());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Guest::of(&host.backend, id).await.expect("echo > /workspace/file").await;
    remove(&host, id).await;
}

#[tokio::test]
async fn only_unused_networks_are_reused() {
    let host = Host::new();
    let network = |id| fs::File::open(format!("/proc/{}/ns/net", host.guest_pid(id))).unwrap();
    // The kernel reuses inode numbers of namespaces, so both are held open during the comparison.
    let is_same =
        |one: &fs::File, other: &fs::File| one.metadata().unwrap().ino() == other.metadata().unwrap().ino();
    let mut unused: Vec<fs::File> = Vec::new();
    let end = Instant::now() + Duration::from_secs(60);
    let (id, lent) = loop {
        let id = make(&host, &spec()).await;
        let lent = network(id);
        if unused.iter().any(|unused| is_same(unused, &lent)) {
            break (id, lent);
        }
        assert!(Instant::now() < end, "no network was lent twice");
        Guest::of(&host.backend, id).await.expect("true").await;
        remove(&host, id).await;
        unused.push(lent);
    };
    Guest::of(&host.backend, id).await.expect("bash -c 'echo x > /dev/udp/127.0.0.1/9'").await;
    remove(&host, id).await;
    for _ in 0..5 {
        let id = make(&host, &spec()).await;
        assert!(!is_same(&network(id), &lent), "a used network was lent again");
        remove(&host, id).await;
    }
}

/// Contents, names and attributes of what a job wrote are nowhere in the server's folder once the sandbox is gone,
/// not even in the free blocks of a disk that is ready for the next one.
#[tokio::test]
async fn destroyed_sandbox_leaves_no_data_on_the_host_disk() {
    let host = Host::new();
    let secrets: Vec<String> = (0..3).map(|_| SandboxId::generate().to_string()).collect();
    for _ in 0..3 {
        let id = make(&host, &spec()).await;
        let guest = Guest::of(&host.backend, id).await;
        assert_eq!(guest.expect("ls -A /workspace /app /tmp /var/tmp").await, EMPTY);
        let [content, attribute, name] = &*secrets else { panic!() };
        guest.expect(&format!("echo {content} | tee a b; touch {name}; ln -s {name} link")).await;
        let set = format!("import os; os.setxattr('a', 'user.x', b'{attribute}')");
        guest.expect(&format!("/usr/bin/python3 -c \"{set}\"; sync a; rm b; sync .")).await;
        assert!(is_found(&host.config.state_dir, &secrets), "they were never written");
        remove(&host, id).await;
    }
    host.backend.cleanup().unwrap().finish().await.unwrap();
    assert!(!is_found(&host.config.state_dir, &secrets));
}

/// Whether any file below a folder contains one of these texts.
fn is_found(folder: &Path, texts: &[String]) -> bool {
    let mut grep = Command::new("grep");
    grep.args(["-raqF"]).args(texts.iter().flat_map(|text| ["-e", text])).arg(folder);
    let code = grep.stderr(std::process::Stdio::null()).status().unwrap().code();
    code == Some(0)
}

#[tokio::test]
async fn ptys_watches_and_tmpfs_inodes_are_limited_per_sandbox() {
    let host = Host::new();
    let mut spec = spec();
    spec.limits.memory_mib = Limit::Required(128);
    spec.limits.open_files = Limit::Required(1024);
    let id = make(&host, &spec).await;
    let guest = Guest::of(&host.backend, id).await;
    let script = r#"
import ctypes, os
libc = ctypes.CDLL(None)
def watch():
    if libc.inotify_init1(0) < 0: raise OSError
def name(number):
    with open(f"/dev/shm/{number}", "w"): pass
def most(act):
    for number in range(100_000):
        try: act(number)
        except OSError: return number
print(most(lambda _: os.openpty()), most(lambda _: watch()), most(name))
"#;
    let ran = guest.run_program(&["/usr/bin/python3", "-c", script]).await;
    let counts: Vec<u64> = ran.stdout.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [terminals, watches, names] = &*counts else { panic!("{ran:?}") };
    assert_eq!(*terminals, 64);
    let of_host = fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
    assert!((1..=of_host.trim().parse::<u64>().unwrap() / 4).contains(watches), "{watches} watches");
    assert!((1000..4096).contains(names), "{names} names");
    remove(&host, id).await;
}

/// Kernel buffers that nobody reads. If they are charged to memory, the process is killed; if they have their own
/// limit, further writes are refused.
#[tokio::test]
async fn socket_and_pipe_buffers_count_towards_memory() {
    const MEMORY_MIB: u64 = 64;
    let host = Host::new();
    let mut spec = spec();
    spec.limits.memory_mib = Limit::Required(MEMORY_MIB);
    spec.limits.open_files = Limit::Required(1024);
    let id = make(&host, &spec).await;
    let guest = Guest::of(&host.backend, id).await;
    for kind in ["tcp", "udp", "unix", "datagram", "pipe"] {
        let program = ["/usr/bin/python3", "-c", include_str!("fill_buffers.py"), kind];
        let ran = guest.run_program(&program).await;
        let kept: u64 = ran.stdout.lines().last().map_or(0, |line| line.parse().unwrap());
        assert!(kept < MEMORY_MIB, "{kept} MiB are kept in buffers of {kind}");
        assert!(kept > 0 || ran.end == protocol::ExecEnd::Signal(9), "{kind}: {ran:?}");
    }
    remove(&host, id).await;
}

#[tokio::test]
async fn host_device_locks_and_watches_are_invisible_in_a_sandbox() {
    let host = Host::new();
    let id = make(&host, &spec()).await;
    let guest = Guest::of(&host.backend, id).await;
    let names = ["null", "zero", "full", "random", "urandom"];
    let locked: Vec<_> = names.map(|name| fs::File::open(format!("/dev/{name}")).unwrap()).into();
    locked.iter().for_each(|device| device.lock().unwrap());
    for name in names {
        assert_eq!(guest.expect(&format!("flock -n /dev/{name} echo free")).await, "free", "{name}");
        // Inotify watches are on inodes, like locks.
        let of_host = fs::metadata(format!("/dev/{name}")).unwrap();
        let of_host = format!("{}:{}", of_host.dev(), of_host.ino());
        assert_ne!(guest.expect(&format!("stat -c %d:%i /dev/{name}")).await, of_host);
    }
    assert_eq!(
        guest.expect("head -c 3 /dev/zero | wc -c; echo x > /dev/null; stat -c %a:%u /dev/null").await,
        "3\n666:0"
    );
    remove(&host, id).await;
}

#[tokio::test]
async fn sandbox_has_its_own_boot_id_and_sees_no_host_paths() {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let host = Host::new();
    let mut boot_ids = BTreeSet::from([fs::read_to_string(BOOT_ID).unwrap().trim().to_owned()]);
    for _ in 0..2 {
        let id = make(&host, &spec()).await;
        let guest = Guest::of(&host.backend, id).await;
        boot_ids.insert(guest.expect(&format!("cat {BOOT_ID}; ls -A /run")).await);
        let sockets = guest.expect("cat /proc/net/unix").await;
        assert!(sockets.contains(&id.to_string()), "{sockets}");
        assert!(!sockets.contains(&*host.config.run_dir.to_string_lossy()), "{sockets}");
        remove(&host, id).await;
    }
    assert_eq!(boot_ids.len(), 3);
    assert!(boot_ids.iter().all(|boot_id| boot_id.len() == 36), "{boot_ids:?}");
}

/// Kills all processes of a sandbox as its backend does, and waits until they are gone.
fn end_processes(host: &Host, id: SandboxId) {
    let [guest, launcher] = [host.guest_pid(id), host.launcher_pid(id)]
        .map(|pid| pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap());
    pidfd_send_signal(&launcher, Signal::TERM).unwrap();
    for process in [&guest, &launcher] {
        while let Err(error) = poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
            assert_eq!(error, rustix::io::Errno::INTR);
        }
    }
    while !Host::group(id).processes().is_empty() {
        std::thread::yield_now();
    }
}

/// A process that still holds the device may still write to the file below it.
#[tokio::test]
async fn disk_below_a_symlinked_folder_is_waited_for() {
    let real = tempfile::tempdir().unwrap();
    let link = real.path().join("link");
    std::os::unix::fs::symlink(real.path(), &link).unwrap();
    let mut host = Host::with(&program("caisson-launcher"), &program("caisson-guest"), &link);
    let id = make(&host, &spec()).await;
    let running = LaunchFileContents::read(&host.sandbox(id)).unwrap().unwrap().running().unwrap();
    let device = fs::File::open(format!("/dev/loop{}", running.loop_device.unwrap())).unwrap();
    // Kills its processes first, however long that takes, so that only the device is left to wait for.
    end_processes(&host, id);
    host.config.stop_timeout = Duration::from_millis(100);
    host.backend = NamespaceBackend::new(host.config.clone()).unwrap();
    let error = host.backend.destroy(id).await.unwrap_err();
    assert!(error.to_string().contains("loop device"), "{error}");
    drop(device);
    host.config.stop_timeout = Duration::from_secs(60);
    host.backend = NamespaceBackend::new(host.config.clone()).unwrap();
    remove(&host, id).await;
}

#[tokio::test]
async fn remains_of_a_failed_start_are_replaced() {
    let host = Host::new();
    let id = SandboxId::generate();
    fs::create_dir_all(host.sandbox(id).join("guest")).unwrap();
    fs::write(host.sandbox(id).join("launch.jsonl"), "{").unwrap();
    assert!(host.backend.list().await.unwrap().contains(&id));
    assert!(matches!(host.backend.observe(id).await.unwrap().phase, Phase::Ended(_)));
    host.backend.create(id, &spec()).await.unwrap();
    Guest::of(&host.backend, id).await.expect("true").await;
    remove(&host, id).await;
}
