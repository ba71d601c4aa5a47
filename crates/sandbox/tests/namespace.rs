//! The namespace backend keeps the promises of every backend, and some of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod namespace_host;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use launcher::launch_file::LaunchText;
use namespace_host::{Host, program};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use sandbox::conformance::{Guest, make, remove, spec};
use sandbox::namespace::NamespaceBackend;
use sandbox::{
    Backend, CheckState, EndedReason, Image, LimitKind, Phase, SandboxError, SandboxId, SandboxSpec,
};

/// What `ls -A` says of four empty directories.
const EMPTY: &str = "/app:\n\n/tmp:\n\n/var/tmp:\n\n/workspace:";

sandbox::conformance_suite!(Host::new());

#[tokio::test]
async fn this_host_is_fit_and_every_flaw_has_a_remedy() {
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
async fn the_host_image_has_nothing_of_the_hosts_users() {
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
    spec.limits.memory_mib = sandbox::Limit::Required(1024);
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
async fn a_directory_is_an_image_and_stays_as_it_is() {
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

/// A program and the libraries that it needs, at the same paths below another root.
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
async fn an_image_whose_workspace_is_a_link_is_refused_by_name() {
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
async fn a_sandbox_of_an_earlier_version_is_told_to_be_lost_and_ended() {
    let host = Host::new();
    let id = SandboxId::generate();
    host.backend.create(id, &spec()).await.unwrap();
    let launcher = Pid::from_raw(host.launcher_pid(id)).unwrap();
    let launcher = pidfd_open(launcher, PidfdFlags::empty()).unwrap();
    fs::rename(host.sandbox(id).join("launch.jsonl"), host.sandbox(id).join("launch.json")).unwrap();
    let Phase::Ended(ended) = host.backend.observe(id).await.unwrap().phase else { panic!("not told") };
    assert_eq!(ended.reason, EndedReason::Lost);
    assert!(ended.detail.contains("earlier version"), "{}", ended.detail);
    remove(&host, id).await;
    // Asked of the process itself: one that has ended has a folder in /proc until its parent looks.
    let ended = poll(&mut [PollFd::new(&launcher, PollFlags::IN)], Some(&Timespec::default())).unwrap();
    assert_eq!(ended, 1, "the launcher lives on");
}

#[tokio::test]
async fn a_launcher_that_stood_ready_and_died_is_replaced_and_its_sandboxes_live_on() {
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
async fn a_sandbox_that_does_nothing_gives_the_memory_of_its_programs_back() {
    // What stays is what they need to wait; right after a command it is 2,800 and 1,200.
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
async fn a_network_is_lent_again_only_when_nobody_used_it() {
    let host = Host::new();
    let network = |id| fs::File::open(format!("/proc/{}/ns/net", host.guest_pid(id))).unwrap();
    // Numbers of namespaces are used again, so both are held while they are compared.
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

#[tokio::test]
async fn a_disk_stays_mounted_for_the_next_sandbox_which_finds_nothing_on_it() {
    let host = Host::new();
    let file = |id| fs::metadata(host.sandbox(id).join("disk.img")).unwrap().ino();
    let device = |id| {
        let running = LaunchText::read(&host.sandbox(id)).unwrap().unwrap().running().unwrap();
        running.loop_device.unwrap()
    };
    let mut seen = BTreeSet::new();
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let id = make(&host, &spec()).await;
        let guest = Guest::of(&host.backend, id).await;
        assert_eq!(guest.expect("ls -A /workspace /app /tmp /var/tmp").await, EMPTY);
        guest.expect("test -w /workspace && echo secret | tee /workspace/a /tmp/b /var/tmp/c").await;
        guest.expect("chmod 500 /workspace && mkdir -p ~/d/e && ln -s /etc /tmp/etc").await;
        let now = (file(id), device(id));
        remove(&host, id).await;
        if !seen.insert(now) {
            break;
        }
        assert!(Instant::now() < end, "no disk was used twice");
    }
}

#[tokio::test]
async fn a_start_that_fails_with_a_kept_disk_leaves_nothing() {
    let host = Host::new();
    let kept = || {
        let files = fs::read_dir(host.config.state_dir.join("disks")).unwrap().flatten();
        files.filter(|file| file.path().extension().is_some_and(|end| end == "kept")).count()
    };
    let image = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/etc", image.path().join("workspace")).unwrap();
    let unfit = SandboxSpec { image: Image::Directory(image.path().into()), ..spec() };
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let id = make(&host, &spec()).await;
        remove(&host, id).await;
        let before = kept();
        let id = SandboxId::generate();
        let error = host.backend.create(id, &unfit).await.unwrap_err();
        assert!(matches!(error, SandboxError::Setup { .. }), "{error:?}");
        assert!(!host.sandbox(id).exists(), "the sandbox is left");
        remove(&host, id).await;
        // It may have been too early, while the disk was still being emptied.
        if kept() < before {
            break;
        }
        assert!(Instant::now() < end, "no kept disk was used");
    }
}

/// Ends all processes of a sandbox as its backend does, and waits until they are gone.
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

/// Somebody who still holds the device may still write to the file below it, which is to be another sandbox's disk.
#[tokio::test]
async fn the_disk_of_a_folder_with_another_name_is_waited_for() {
    let real = tempfile::tempdir().unwrap();
    let link = real.path().join("link");
    std::os::unix::fs::symlink(real.path(), &link).unwrap();
    let mut host = Host::with(&program("caisson-launcher"), &program("caisson-guest"), &link);
    // One that is kept is not waited for.
    host.config.ready_disks = 0;
    host.backend = NamespaceBackend::new(host.config.clone()).unwrap();
    let id = make(&host, &spec()).await;
    let running = LaunchText::read(&host.sandbox(id)).unwrap().unwrap().running().unwrap();
    let device = fs::File::open(format!("/dev/loop{}", running.loop_device.unwrap())).unwrap();
    // Its processes have ended before, however long that takes: then the device alone is waited for.
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
async fn remains_of_a_start_that_never_was_are_replaced() {
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
