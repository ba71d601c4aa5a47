//! Symlink and hard link attacks on the file interface and on the code that collects the workspace.
//!
//! Both run in the guest with more privileges than the agent, so a name that the agent swaps during an operation must
//! not lead them out of the workspace.

use protocol::{FileOperation, FileReply, GuestClient, ProtocolError};
use sandbox::SandboxId;
use sandbox::conformance::{Guest, make, remove, spec_for};

use super::AttackedBackend;
use super::host_state::HostSnapshot;

async fn attacked_sandbox(backend_under_attack: &impl AttackedBackend) -> (SandboxId, Guest, HostSnapshot) {
    let id = make(backend_under_attack, &spec_for(backend_under_attack)).await;
    let guest = Guest::of(backend_under_attack.backend(), id).await;
    let host = HostSnapshot::begin(backend_under_attack, id);
    (id, guest, host)
}

/// The reply of the file interface; an error only if it refuses.
async fn ask(client: &GuestClient, operation: FileOperation) -> Result<FileReply, ProtocolError> {
    let answer = client.file(None, operation).await;
    assert!(matches!(&answer, Ok(_) | Err(ProtocolError::File(_))), "the guest answers: {answer:?}");
    answer
}

async fn read(client: &GuestClient, path: &str) -> Result<String, ProtocolError> {
    let operation = FileOperation::Read { path: path.into(), offset: 0, limit_bytes: 1 << 20 };
    ask(client, operation).await.map(|reply| format!("{reply:?}"))
}

pub(crate) async fn file_interface_does_not_follow_symlinks_out(backend_under_attack: impl AttackedBackend) {
    let (id, guest, host) = attacked_sandbox(&backend_under_attack).await;
    guest
        .expect("ln -s /etc/passwd absolute; ln -s ../../../../../../etc/passwd relative; ln -s / root; ln -s /proc/self/root magic; \
                 ln -s /proc/1/environ guest; ln -s loop loop; ln -s .. up; mkdir d; ln -s ../../.. d/up")
        .await;
    let inside = |path: &str| path.to_owned();
    for path in [
        "absolute",
        "relative",
        "root/etc/passwd",
        "magic/etc/passwd",
        "guest",
        "loop",
        "up/etc/passwd",
        "d/up/etc/passwd",
        "../etc/passwd",
        "/etc/passwd",
        "d/../../etc/passwd",
    ] {
        let answer = read(&guest.client, path).await;
        assert!(answer.is_err(), "reading {path} gave {answer:?}");
        for operation in [
            FileOperation::Write { path: inside(&format!("{path}/x")), content: "x".into(), mode: None },
            FileOperation::MakeDirectory { path: inside(&format!("{path}/new")) },
            FileOperation::List { path: inside(&format!("{path}/")), depth: 3, limit: 10, skip: Vec::new() },
            FileOperation::Move { from: inside(&format!("{path}/hosts")), to: "moved".into() },
            FileOperation::Remove { path: inside(&format!("{path}/hosts")), recursive: true },
        ] {
            let shown = format!("{operation:?}");
            let answer = ask(&guest.client, operation).await;
            assert!(answer.is_err(), "{shown} gave {answer:?}");
        }
    }
    // A symlink itself may be replaced and removed; its target must stay unchanged.
    let write = FileOperation::Write { path: "absolute".into(), content: "mine".into(), mode: None };
    let _ = ask(&guest.client, write).await;
    assert!(guest.expect("cat /etc/passwd").await.contains("root:"));
    host.assert_untouched();
    remove(&backend_under_attack, id).await;
}

/// While the file interface reads, writes and removes a name, the agent swaps it, as fast as it can, between a
/// directory of its own and a symlink to the outside.
pub(crate) async fn swapped_symlinks_do_not_lead_out(backend_under_attack: impl AttackedBackend) {
    let (id, guest, host) = attacked_sandbox(&backend_under_attack).await;
    let swap = r#"
import os
os.mkdir("a"); open("a/hosts", "w").write("mine"); open("a/passwd", "w").write("mine")
os.symlink("/etc", "b")
open("ready", "w").close()
import ctypes
libc = ctypes.CDLL(None)
while not os.path.exists("stop"):
    libc.renameat2(-100, b"a", -100, b"b", 2)
"#;
    guest
        .expect(&format!(
            "cat > swap.py <<'X'\n{swap}\nX\npython3 swap.py > log 2>&1 & while [ ! -e ready ]; do :; done"
        ))
        .await;
    let (mut mine, mut refused) = (0, 0);
    for round in 0..400 {
        match read(&guest.client, "a/passwd").await {
            Ok(text) => {
                assert!(!text.contains("root:"), "a file of the image was read");
                mine += 1;
            }
            Err(_) => refused += 1,
        }
        let path = format!("a/new{round}");
        let write = FileOperation::Write { path: path.clone(), content: "x".into(), mode: None };
        let _ = ask(&guest.client, write).await;
        let gone = FileOperation::Remove { path, recursive: false };
        let _ = ask(&guest.client, gone).await;
    }
    guest.expect("touch stop").await;
    assert!(mine > 0 && refused > 0, "the race was not a race: {mine} read, {refused} refused");
    assert_eq!(guest.expect("ls /etc | grep -c '^new[0-9]' || true").await, "0");
    host.assert_untouched();
    remove(&backend_under_attack, id).await;
}

/// While the file interface reads, writes and removes a name, the agent turns it, as fast as it can, into a hard link
/// to a file that is not its own, into one to a file of its own elsewhere, and into a file of the workspace.
pub(crate) async fn swapped_hard_links_do_not_lead_out(backend_under_attack: impl AttackedBackend) {
    let (id, guest, host) = attacked_sandbox(&backend_under_attack).await;
    let swap = r#"
import os
os.makedirs("d", exist_ok=True)
open("plain", "w").write("mine")
targets = ["/etc/passwd", "/etc/hosts", "/usr/bin/env", "/proc/1/environ", "/proc/self/exe", "plain"]
made = set()
open("ready", "w").close()
while not os.path.exists("stop"):
    for target in targets:
        try:
            os.link(target, "d/hard.new", follow_symlinks=False)
            os.rename("d/hard.new", "d/hard")
            made.add(target)
        except OSError:
            pass
with open("made.new", "w") as told:
    told.write(" ".join(sorted(made)))
os.rename("made.new", "made")
"#;
    guest
        .expect(&format!(
            "cat > swap.py <<'X'\n{swap}\nX\npython3 swap.py > log 2>&1 & while [ ! -e ready ]; do :; done"
        ))
        .await;
    let facts = "cat /etc/passwd /etc/hosts; stat -c '%a %u %s' /etc/passwd /etc/hosts /usr/bin/env";
    let before = guest.expect(facts).await;
    for _ in 0..300 {
        if let Ok(text) = read(&guest.client, "d/hard").await {
            assert!(!text.contains("root:") && !text.contains("ELF"), "a file of the image was read: {text}");
        }
        let write = FileOperation::Write { path: "d/hard".into(), content: "x".into(), mode: Some(0o666) };
        let _ = ask(&guest.client, write).await;
        let gone = FileOperation::Remove { path: "d/hard".into(), recursive: false };
        let _ = ask(&guest.client, gone).await;
    }
    guest.expect("touch stop; while [ ! -e made ]; do :; done").await;
    // Files of another file system or another user cannot be hard-linked at all.
    assert_eq!(guest.expect("cat made").await, "plain");
    assert_eq!(guest.expect(facts).await, before);
    host.assert_untouched();
    remove(&backend_under_attack, id).await;
}

/// Collects the workspace as the host does at the end of a job.
async fn collect(client: &GuestClient) -> Result<Vec<u8>, ProtocolError> {
    let mut download = client.pack(String::new(), Vec::new(), None).await?;
    let mut archive = Vec::new();
    while let Some(bytes) = download.next().await? {
        archive.extend_from_slice(&bytes);
    }
    Ok(archive)
}

pub(crate) async fn collecting_a_changing_workspace_leaks_nothing_of_the_host(
    backend_under_attack: impl AttackedBackend,
) {
    let (id, guest, host) = attacked_sandbox(&backend_under_attack).await;
    let swap = r#"
import ctypes, os
libc = ctypes.CDLL(None)
for n in range(20):
    os.makedirs(f"d{n}/e"); open(f"d{n}/e/passwd", "w").write("mine"); os.symlink("/etc", f"l{n}"); os.symlink("/etc/passwd", f"f{n}")
    open(f"g{n}", "w").write("mine")
    os.link(f"g{n}", f"h{n}")
open("ready", "w").close()
while not os.path.exists("stop"):
    for n in range(20):
        libc.renameat2(-100, f"d{n}".encode(), -100, f"l{n}".encode(), 2)
        libc.renameat2(-100, f"f{n}".encode(), -100, f"g{n}".encode(), 2)
"#;
    guest
        .expect(&format!(
            "cat > swap.py <<'X'\n{swap}\nX\npython3 swap.py > log 2>&1 & while [ ! -e ready ]; do :; done"
        ))
        .await;
    for _ in 0..20 {
        // A change during the collection may make it fail, which is fine.
        let Ok(archive) = collect(&guest.client).await else { continue };
        for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
            assert!(!content.starts_with(b"root:"), "{:?} holds a file of the image", entry.path());
            assert!(!entry.path_bytes().starts_with(b"/"), "{:?}", entry.path());
        }
    }
    guest.expect("touch stop").await;
    host.assert_untouched();
    remove(&backend_under_attack, id).await;
}

pub(crate) async fn archives_with_parents_and_links_stay_inside(backend_under_attack: impl AttackedBackend) {
    let (id, guest, host) = attacked_sandbox(&backend_under_attack).await;
    let entry = |kind: tar::EntryType, name: &[u8], link: &[u8], content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link);
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o6777);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().div_ceil(512) * 512, 0);
        bytes
    };
    use tar::EntryType as Kind;
    let evil: [(&str, Vec<Vec<u8>>); 7] = [
        ("a parent", vec![entry(Kind::Regular, b"../../../../tmp/escaped", b"", b"x")]),
        ("an absolute name", vec![entry(Kind::Regular, b"/tmp/escaped", b"", b"x")]),
        (
            "a link and a file through it",
            vec![entry(Kind::Symlink, b"out", b"/tmp", b""), entry(Kind::Regular, b"out/escaped", b"", b"x")],
        ),
        (
            "a link upwards",
            vec![
                entry(Kind::Symlink, b"up", b"../../../..", b""),
                entry(Kind::Regular, b"up/tmp/escaped", b"", b"x"),
            ],
        ),
        (
            "a hard link out",
            vec![entry(Kind::Link, b"hard", b"/etc/passwd", b""), entry(Kind::Regular, b"hard", b"", b"x")],
        ),
        ("a hard link upwards", vec![entry(Kind::Link, b"hard2", b"../../../etc/passwd", b"")]),
        ("a device", vec![entry(Kind::Block, b"disk", b"", b""), entry(Kind::Char, b"mem", b"", b"")]),
    ];
    let passwd = guest.expect("cat /etc/passwd").await;
    for (what, entries) in evil {
        let mut upload = guest.client.unpack(String::new()).await.expect("the guest answers");
        let mut archive = entries.concat();
        archive.extend_from_slice(&[0; 1024]);
        let sent = upload.write(&archive).await;
        let answer = upload.finish().await;
        let seen = guest.expect("ls -d /tmp/escaped /escaped 2>/dev/null | wc -l").await;
        assert_eq!(seen, "0", "{what}: {sent:?} {answer:?}");
        assert_eq!(guest.expect("cat /etc/passwd").await, passwd, "{what}");
        let special = guest.expect("find . -type b -o -type c -o -perm /6000 | wc -l").await;
        assert_eq!(special, "0", "{what}: {answer:?}");
    }
    assert!(!std::path::Path::new("/tmp/escaped").exists(), "the host has it");
    host.assert_untouched();
    remove(&backend_under_attack, id).await;
}
