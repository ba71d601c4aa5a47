//! The binary run by an unprivileged user that exists only in the mount namespace of this test.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::{Command, Output};

use e2e::binary;
use serde_json::Value;

/// The user's id; no user of the host has it.
const UID: u32 = 60_124;
const FIRST_SUBORDINATE: u32 = 710_000_000;
/// The current directory is the test's folder; the arguments are passed to the binary.
const SCRIPT: &str = r#"
set -e
for name in passwd group subuid subgid; do [ -e /etc/$name ] || touch /etc/$name; mount --bind $name /etc/$name; done
mount --bind "$BINARY" caisson
exec setpriv --reuid=$USER_ID --regid=$USER_ID --clear-groups \
    env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=$PWD/home XDG_RUNTIME_DIR=$PWD/run NO_COLOR=1 \
    "$PWD/caisson" "$@"
"#;

/// Whether the host delegates subordinate ids to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    Subordinate,
    OwnOnly,
}

struct User {
    folder: tempfile::TempDir,
}

impl User {
    fn new(ids: Ids) -> Self {
        // The path must be short because Unix sockets are created below it.
        let folder = tempfile::Builder::new().prefix("cu").tempdir().unwrap();
        let path = folder.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        let lent = if ids == Ids::Subordinate {
            format!("ordinary:{FIRST_SUBORDINATE}:65536\n")
        } else {
            String::new()
        };
        for (name, text) in [
            (
                "passwd",
                format!("root:x:0:0:root:/root:/bin/sh\nordinary:x:{UID}:{UID}::/nonexistent:/bin/sh\n"),
            ),
            ("group", format!("root:x:0:\nordinary:x:{UID}:\n")),
            ("subuid", lent.clone()),
            ("subgid", lent),
            ("caisson", String::new()),
            ("steps.json", r#"[{"tool": "shell", "command": "id -un; echo made > made.txt"}]"#.into()),
            ("landlock.toml", "[sandbox]\nisolation = \"landlock\"\n".into()),
        ] {
            fs::write(path.join(name), text).unwrap();
        }
        fs::create_dir(path.join("home")).unwrap();
        fs::create_dir(path.join("run")).unwrap();
        for owned in [path.to_path_buf(), path.join("home"), path.join("run")] {
            chown(owned, Some(UID), Some(UID)).unwrap();
        }
        Self { folder }
    }

    fn run_caisson(&self, words: &[&str]) -> Output {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]).args(words);
        command.current_dir(self.folder.path());
        command.env("BINARY", binary()).env("USER_ID", UID.to_string()).output().unwrap()
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Asserts that `caisson doctor` reports usable sandboxes, and that a run works and leaves nothing behind.
#[track_caller]
fn assert_sandboxes_work(ids: Ids) {
    let user = User::new(ids);
    let doctor = user.run_caisson(&["doctor", "--json"]);
    assert!(doctor.status.success(), "{}", said(&doctor));
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert_eq!(doctor["isolation"], "namespaces", "{doctor:#}");
    let table = user.run_caisson(&["doctor"]);
    assert!(table.status.success() && said(&table).contains("namespaces"), "{}", said(&table));

    let mut settings: Vec<&[&str]> = vec![&[]];
    // The operator accepts weaker isolation and gets what the host offers.
    settings.push(&["--config", "landlock.toml"]);
    for (number, more) in settings.into_iter().enumerate() {
        let out = format!("home/result-{number}");
        let words = [&["run", "--here", "--steps", "steps.json", "--out", &out], more].concat();
        let ran = user.run_caisson(&words);
        assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
        let who = if ids == Ids::Subordinate { "agent" } else { "root" };
        assert!(said(&ran).contains(&format!("\n  {who}\n")), "{}", said(&ran));
        let made = fs::read_to_string(user.folder.path().join(&out).join("made.txt")).unwrap();
        assert_eq!(made, "made\n");
    }
    let once = user.folder.path().join("home/.local/share/caisson/once");
    let left: Vec<_> = fs::read_dir(&once).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let outside: Vec<_> = fs::read_dir(user.folder.path().join("run")).unwrap().collect();
    assert!(outside.is_empty(), "{outside:?}");
}

#[test]
fn user_with_subordinate_ids_can_run_sandboxes() {
    assert_sandboxes_work(Ids::Subordinate);
}

#[test]
fn user_without_subordinate_ids_can_run_sandboxes() {
    assert_sandboxes_work(Ids::OwnOnly);
}
