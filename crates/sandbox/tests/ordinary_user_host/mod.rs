//! A temporary user for one test, in a mount namespace with the test's own user databases.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use launcher::cgroup::Hierarchy;
use launcher::spec::ID_MAP_PROGRAMS;

use crate::namespace_host::{Host, program};

/// Uid of the user, unused on the host.
pub(crate) const UID: u32 = 60_123;
const FIRST_LENT: u32 = 700_000_000;

/// What the host grants the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserSetup {
    /// Subordinate ids.
    Lent,
    /// Nothing.
    Single,
    /// Delegated cgroups, but no subordinate ids.
    Delegated,
}

/// Runs a test: as root it re-executes itself as the user; as the user it runs the body.
pub(crate) fn run<F: Future<Output = ()>>(setting: UserSetup, name: &str, body: impl FnOnce(Host) -> F) {
    if rustix::process::geteuid().is_root() {
        return start_again(setting, name);
    }
    let directory = std::env::current_dir().unwrap();
    let host = Host::with(&directory.join("launcher"), &directory.join("guest"), &directory);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
        .block_on(body(host));
}

/// `$1` is the setting, `$2` the name of the test; the working directory is the test's.
const SCRIPT: &str = r#"
set -e
for name in passwd group subuid subgid; do [ -e /etc/$name ] || touch /etc/$name; mount --bind $name /etc/$name; done
mount --bind "$TEST" test
mount --bind "$LAUNCHER" launcher
mount --bind "$GUEST" guest
for door in $DOORS; do echo $$ > $door; done
exec setpriv --reuid=$USER_ID --regid=$USER_ID --clear-groups env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin TMPDIR=$PWD/tmp \
    ./test --exact --nocapture "$1"
"#;

fn start_again(setting: UserSetup, name: &str) {
    for helper in ID_MAP_PROGRAMS {
        assert!(Path::new(helper).exists(), "{helper} is missing: apt-get install uidmap");
    }
    let directory = tempfile::Builder::new().prefix("cu").tempdir().unwrap();
    let path = directory.path();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    write_lists(path, setting);
    for name in ["test", "launcher", "guest"] {
        fs::write(path.join(name), "").unwrap();
    }
    fs::create_dir(path.join("tmp")).unwrap();
    for owned in [path.to_path_buf(), path.join("tmp")] {
        chown(owned, Some(UID), Some(UID)).unwrap();
    }
    let groups = if setting == UserSetup::Delegated { delegate(path) } else { Vec::new() };
    let doors: Vec<_> = groups.iter().map(|group| group.join("cgroup.procs").display().to_string()).collect();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh", name])
        .current_dir(path)
        .env("TEST", std::env::current_exe().unwrap())
        .env("LAUNCHER", program("caisson-launcher"))
        .env("GUEST", program("caisson-guest"))
        .env("DOORS", doors.join(" "))
        .env("USER_ID", UID.to_string())
        .output()
        .unwrap();
    for group in groups {
        // The last process may still be exiting.
        let end = Instant::now() + Duration::from_secs(60);
        while group.exists() && Instant::now() < end {
            for below in ["caisson-test", "caisson-server", ""] {
                let _ = fs::remove_dir(group.join(below));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!group.exists(), "{} is left", group.display());
    }
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{complained}");
}

fn write_lists(path: &Path, setting: UserSetup) {
    let user = format!("root:x:0:0:root:/root:/bin/sh\nordinary:x:{UID}:{UID}::/nonexistent:/bin/sh\n");
    let lent =
        if setting == UserSetup::Lent { format!("ordinary:{FIRST_LENT}:65536\n") } else { String::new() };
    for (name, text) in [
        ("passwd", user),
        ("group", format!("root:x:0:\nordinary:x:{UID}:\n")),
        ("subuid", lent.clone()),
        ("subgid", lent),
    ] {
        fs::write(path.join(name), text).unwrap();
    }
}

/// Creates cgroups owned by the user, as an administrator would delegate them.
fn delegate(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap();
    let hierarchy = Hierarchy::find().expect("control groups are needed: mount cgroup2 or cgroup");
    let roots: std::collections::BTreeSet<_> = match hierarchy {
        Hierarchy::V2 { root } => {
            fs::write(root.join("cgroup.subtree_control"), "+memory +cpu +pids").unwrap();
            [root].into()
        }
        Hierarchy::V1 { roots } => roots.into_values().collect(),
    };
    let make = |root: PathBuf| {
        let group = root.join(name);
        fs::create_dir(&group).unwrap();
        for owned in ["", "cgroup.procs", "tasks", "cgroup.subtree_control"] {
            let owned = group.join(owned);
            if owned.exists() {
                chown(owned, Some(UID), Some(UID)).unwrap();
            }
        }
        group
    };
    roots.into_iter().map(make).collect()
}
