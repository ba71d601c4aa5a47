//! Resource exhaustion. A sandbox that uses everything up harms only itself: the guest still answers, a sandbox
//! created afterwards works, and the host is unchanged.

use std::time::Duration;

use sandbox::conformance::{Guest, make, remove, spec_for};
use sandbox::{Limit, SandboxSpec};

use super::host_state::HostSnapshot;
use super::{AttackedBackend, run_python};

/// Runs a script that consumes a resource without end, then checks the guest, another sandbox and the host.
async fn use_up(
    backend_under_attack: &impl AttackedBackend,
    change: impl FnOnce(&mut SandboxSpec),
    script: &str,
) -> String {
    let mut spec = spec_for(backend_under_attack);
    change(&mut spec);
    let id = make(backend_under_attack, &spec).await;
    let guest = Guest::of(backend_under_attack.backend(), id).await;
    let host = HostSnapshot::begin(backend_under_attack, id);
    let ran = run_python(&guest, script).await;
    let said = format!("{}{}{:?}", ran.stdout, ran.stderr, ran.end);
    tokio::time::timeout(Duration::from_secs(60), guest.client.ping())
        .await
        .expect("in time")
        .expect("the guest answers");
    let neighbour = make(backend_under_attack, &spec_for(backend_under_attack)).await;
    assert_eq!(
        Guest::of(backend_under_attack.backend(), neighbour).await.expect("echo unharmed").await,
        "unharmed"
    );
    remove(backend_under_attack, neighbour).await;
    assert_eq!(guest.expect("echo alive").await, "alive");
    host.assert_untouched();
    remove(backend_under_attack, id).await;
    said
}

pub(crate) async fn process_exhaustion_does_not_affect_host_or_guest(
    backend_under_attack: impl AttackedBackend,
) {
    if !backend_under_attack.enforces(sandbox::LimitKind::Pids) {
        // The kernel counts the processes of the server's own user there; `unenforced_limits_are_reported` checks
        // that this is reported.
        return;
    }
    let script = r#"
import signal, threading, time
children, refused = [], 0
while refused < 20 and len(children) < 500:
    try:
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
    except OSError:
        refused += 1
try:
    for _ in range(100): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
except RuntimeError:
    refused += 1
for child in children: os.kill(child, 9)
print("refused", refused, flush=True)
os._exit(0)
"#;
    let said = use_up(&backend_under_attack, |spec| spec.limits.pids = Limit::Required(48), script).await;
    assert!(said.contains("refused 2"), "{said}");
}

pub(crate) async fn memory_exhaustion_does_not_affect_host_or_guest(
    backend_under_attack: impl AttackedBackend,
) {
    if !backend_under_attack.enforces(sandbox::LimitKind::Memory) {
        return;
    }
    let script = r#"
child = os.fork()
if child == 0:
    kept = []
    while True: kept.append(bytearray(os.urandom(1 << 20)))
print("ended by", os.waitpid(child, 0)[1] & 127)
try:
    with open("/dev/shm/much", "wb") as file:
        while True: file.write(bytes(1 << 20))
except OSError as error:
    print("also", errno.errorcode[error.errno])
attempt(lambda: os.unlink("/dev/shm/much"))
"#;
    let said =
        use_up(&backend_under_attack, |spec| spec.limits.memory_mib = Limit::Required(96), script).await;
    assert!(said.contains("ended by 9") || said.contains("Signal(9)"), "{said}");
}

pub(crate) async fn disk_and_inode_exhaustion_does_not_affect_host_or_guest(
    backend_under_attack: impl AttackedBackend,
) {
    if !backend_under_attack.enforces(sandbox::LimitKind::Disk) {
        return;
    }
    let script = r#"
def fill():
    with open("much", "wb") as file:
        while True: file.write(bytes(1 << 20))
def name():
    for number in range(10_000_000): open(f"names/{number}", "w").close()
print(attempt(fill))
attempt(lambda: os.unlink("much"))
os.mkdir("names")
print(attempt(name))
import shutil
shutil.rmtree("names")
"#;
    let said = use_up(&backend_under_attack, |spec| spec.limits.disk_mib = Limit::Required(64), script).await;
    assert_eq!(said, "ENOSPC\nENOSPC\nCode(0)");
}

pub(crate) async fn fd_and_pty_exhaustion_does_not_affect_host_or_guest(
    backend_under_attack: impl AttackedBackend,
) {
    let script = r#"
held = []
def descriptors():
    while len(held) < 100_000: held.append(os.open("/dev/null", os.O_RDONLY))
def terminals():
    import pty
    while len(held) < 100_000: held.extend(os.openpty())
print(attempt(descriptors))
while held: os.close(held.pop())
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        attempt(terminals)
        os.read(0, 1)
        os._exit(0)
    children.append(child)
print(attempt(terminals))
for child in children: os.kill(child, 9)
"#;
    let said = use_up(&backend_under_attack, |_| {}, script).await;
    let mut words = said.strip_suffix("Code(0)").unwrap_or(&said).split_whitespace();
    assert_eq!(words.next(), Some("EMFILE"), "{said}");
    assert!(
        words.all(|word| ["EMFILE", "ENOSPC", "ENFILE", "EACCES", "EPERM", "ENOENT"].contains(&word)),
        "{said}"
    );
}

pub(crate) async fn connection_exhaustion_does_not_affect_the_guest(
    backend_under_attack: impl AttackedBackend,
) {
    let script = r#"
held = []
for number in range(1500):
    try:
        held.append(socket.create_connection(("127.0.0.1", 3128), 5))
        held[-1].sendall(b"\x05" + bytes([number % 256]) * 30)
    except OSError:
        break
print("held", len(held) > 0)
"#;
    let said = use_up(&backend_under_attack, |_| {}, script).await;
    assert!(said.contains("held"), "{said}");
}
