//! The network of a sandbox without namespaces: every connection reaches the egress proxy of its server and nothing
//! else.

use sandbox::{Backend, SandboxId};

use crate::escape_suite::attempts::PRELUDE;
use crate::escape_suite::*;
use crate::namespace_host::Host;
use crate::{end, spec, start};

/// A host listener on all addresses is not reached; the server behind the link is, whatever address was dialled.
pub(crate) async fn every_connection_reaches_the_egress_proxy(host: Host) {
    let outside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    outside.set_nonblocking(true).unwrap();
    let port = outside.local_addr().unwrap().port();
    let id = SandboxId::generate();
    host.backend.create(id, &spec()).await.unwrap();
    let stream = host.backend.connect(id).await.unwrap();
    let (client, _, mut incoming) =
        protocol::GuestClient::connect(stream, protocol::LinkCredentials::new("test", 1)).await.unwrap();
    let answered = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut heard = Vec::new();
        while let Some(mut stream) = incoming.next().await {
            stream.receive_message::<protocol::GuestRequest>().await.unwrap();
            let mut stream = stream.into_raw();
            let mut word = [0; 5];
            stream.read_exact(&mut word).await.unwrap();
            stream.write_all(b"proxy").await.unwrap();
            heard.push(String::from_utf8_lossy(&word).into_owned());
        }
        heard
    });
    let script = format!(
        r#"
def ask(family, address, blocking):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setblocking(blocking)
    assert s.connect_ex(address) == 0
    assert s.getblocking() == blocking and not os.get_inheritable(s.fileno())
    s.setblocking(True)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.sendall(b"hello")
    print(s.recv(5).decode())
ask(socket.AF_INET, ("127.0.0.1", {port}), True)
ask(socket.AF_INET, ("127.0.0.1", 3128), False)
ask(socket.AF_INET, ("192.0.2.1", 443), True)
ask(socket.AF_INET6, ("::1", {port}), True)
"#
    );
    let guest_link = client.clone();
    let ran = run_with(&guest_link, &format!("{PRELUDE}{script}")).await;
    assert_eq!(ran, "proxy\nproxy\nproxy\nproxy\n");
    assert_eq!(outside.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the host was reached");
    client.link().close();
    assert_eq!(answered.await.unwrap(), ["hello"; 4]);
    end(&host, id).await;
}

async fn run_with(client: &protocol::GuestClient, script: &str) -> String {
    let exec = protocol::Exec {
        key: protocol::CallKey::new("dial", 1),
        program: protocol::Program::Arguments(["/usr/bin/python3", "-c", script].map(String::from).to_vec()),
        environment: Default::default(),
        directory: None,
        stdin: None,
        keep_stdin_open: false,
        terminal: None,
        timeout_ms: Some(60_000),
        kill_grace_ms: 100,
    };
    let mut follower = client.exec(exec, protocol::Follow::Capped).await.unwrap();
    let mut said = Vec::new();
    loop {
        match follower.next().await.unwrap() {
            protocol::ExecUpdate::Output(chunk) => said.extend_from_slice(&chunk.bytes),
            protocol::ExecUpdate::Event(protocol::ExecEvent::Ended(_)) => {
                return String::from_utf8(said).unwrap();
            }
            protocol::ExecUpdate::Event(_) => {}
        }
    }
}

pub(crate) async fn no_other_network_path_exists(host: Host) {
    let (id, guest) = start(&host).await;
    let script = format!(
        r#"
def tcp(): return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
for family in [socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET, 38, 40, 43]:
    print(attempt(lambda: socket.socket(family, socket.SOCK_STREAM)))
for family in [socket.AF_INET, socket.AF_INET6]:
    for kind in [socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET]:
        print(attempt(lambda: socket.socket(family, kind)))
    for protocol in [262, 132]:
        print(attempt(lambda: socket.socket(family, socket.SOCK_STREAM, protocol)))
print(attempt(lambda: tcp().bind(("127.0.0.1", 0))), attempt(lambda: tcp().listen()))
print(attempt(lambda: tcp().sendto(b"x", 0x20000000, ("127.0.0.1", 9))))
print(attempt(lambda: tcp().sendmsg([b"x"], [], 0x20000000, ("127.0.0.1", 9))))
print(attempt(lambda: tcp().setsockopt(6, 30, 1)))
print(call({io_uring}, 1, buffer), call({shmget}, 0, 4096, 0o1600), call({mq_open}, b"/x", 0o102, 0o600, 0))
program = (ctypes.c_uint16 * 4)(6, 0, 0, 0x7fff)
print(call({seccomp}, 1, 8, (ctypes.c_uint64 * 2)(1, ctypes.addressof(program))))
"#,
        io_uring = libc::SYS_io_uring_setup,
        shmget = libc::SYS_shmget,
        mq_open = libc::SYS_mq_open,
        seccomp = libc::SYS_seccomp,
    );
    let words = python(&guest, &script).await;
    let refusals = ["EPERM", "EAFNOSUPPORT", "EBUSY"];
    assert!(words.iter().all(|word| refusals.contains(&word.as_str())), "{words:?}");
    assert_eq!(
        words.last().map(String::as_str),
        Some("EBUSY"),
        "nobody else may answer the kernel's questions"
    );
    end(&host, id).await;
}
