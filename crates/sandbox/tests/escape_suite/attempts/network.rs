//! Attempts with sockets.

use super::Attempt;
use super::Where::{Everywhere, OwnRoot};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "open raw sockets",
        applies: Everywhere,
        script: "for family, protocol in [(2, 1), (2, 255), (2, 6), (10, 58), (10, 255)]: print(attempt(lambda: socket.socket(family, 3, protocol)))",
        refusals: &["EPERM", "EACCES"],
    },
    Attempt {
        name: "open packet sockets",
        applies: Everywhere,
        script: "for kind in [2, 3, 10]: print(attempt(lambda: socket.socket(17, kind, 768)))",
        refusals: &["EPERM", "EAFNOSUPPORT", "EACCES"],
    },
    Attempt {
        name: "open sockets to the kernel and to other machines' kinds",
        applies: Everywhere,
        script: r#"
for family, kind, protocol in [(40, 1, 0), (38, 5, 0), (16, 3, 15), (16, 3, 9), (16, 3, 12), (16, 3, 16), (44, 3, 0), (31, 3, 1), (29, 3, 1),
                               (30, 5, 0), (21, 5, 0), (43, 1, 0), (15, 3, 2), (24, 1, 0)]:
    print(attempt(lambda: socket.socket(family, kind, protocol)))
"#,
        refusals: &["EPERM", "EAFNOSUPPORT", "EACCES"],
    },
    Attempt {
        name: "reach abstract sockets of the host",
        applies: Everywhere,
        script: r#"
def connect():
    socket.socket(socket.AF_UNIX).connect("\0" + abstract_name)
def send():
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "\0" + abstract_name)
print(attempt(connect), attempt(send))
"#,
        refusals: &["ECONNREFUSED", "EPERM", "EAFNOSUPPORT"],
    },
    Attempt {
        name: "reach named sockets of the host",
        applies: Everywhere,
        script: r#"
for path in [socket_path, "/run/dbus/system_bus_socket", "/run/systemd/private", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/caisson/guest.sock"]:
    print(attempt(lambda: socket.socket(socket.AF_UNIX).connect(path)))
"#,
        refusals: &["ENOENT", "EPERM", "EACCES", "EAFNOSUPPORT"],
    },
    Attempt {
        name: "connect without the proxy",
        applies: OwnRoot,
        script: r#"
for address in [("10.0.0.1", 80), ("169.254.169.254", 80), ("8.8.8.8", 53), ("172.17.0.1", port), ("192.0.2.1", 443)]:
    print(attempt(lambda: socket.create_connection(address, 5)))
print(attempt(lambda: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 80))), attempt(lambda: socket.create_connection(("127.0.0.1", port), 5)))
"#,
        refusals: &["ENETUNREACH", "ECONNREFUSED", "EADDRNOTAVAIL", "EHOSTUNREACH"],
    },
    Attempt {
        name: "send datagrams",
        applies: Everywhere,
        script: r#"
def send(family, address):
    socket.socket(family, socket.SOCK_DGRAM).sendto(b"x", address)
print(attempt(lambda: send(socket.AF_INET, ("8.8.8.8", 53))), attempt(lambda: send(socket.AF_INET, ("169.254.169.254", 123))))
print(attempt(lambda: send(socket.AF_INET6, ("2001:db8::1", 53))), attempt(lambda: send(socket.AF_INET, ("224.0.0.251", 5353))))
"#,
        refusals: &["ENETUNREACH", "EPERM", "EACCES", "EADDRNOTAVAIL", "EHOSTUNREACH"],
    },
    Attempt {
        name: "see networks of the host",
        applies: OwnRoot,
        script: r#"
print(holds([name for _, name in socket.if_nameindex()] == ["lo"]), holds(len(open("/proc/net/route").readlines()) <= 1))
"#,
        refusals: &["REFUSED"],
    },
    Attempt {
        name: "wait for others on the network of the host",
        applies: OwnRoot,
        script: r#"
listener = socket.create_server(("0.0.0.0", 0))
for kind in ["tcp", "tcp6", "udp", "unix"]:
    print(holds(format(port, "04X") not in open("/proc/net/" + kind).read() and abstract_name not in open("/proc/net/" + kind).read()))
"#,
        refusals: &["REFUSED"],
    },
];
