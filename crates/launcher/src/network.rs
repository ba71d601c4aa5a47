//! Network namespaces for sandboxes, created ahead of time by the process that starts launchers.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::sys;

const OWN_NETWORK: &str = "/proc/thread-self/ns/net";
/// Files that show traces of use: counters of all traffic sent or rejected, and state that outlives its socket.
const TRACE_FILES: [&str; 6] = ["dev", "snmp", "snmp6", "netstat", "ip6_flowlabel", "unix"];
/// Only the first line counts sockets of this namespace; the others count sockets of the whole host.
const SOCKETS: &str = "sockstat";

/// A snapshot of all state of a network namespace that use would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSnapshot(String);

/// Creates a network namespace with only a loopback device.
///
/// # Errors
/// This process may not create one.
pub fn make() -> io::Result<OwnedFd> {
    on_new_thread(|| {
        sys::enter_new_network()?;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sys::bring_up_loopback(&socket)?;
        Ok(open(OWN_NETWORK, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    })
}

/// Takes a snapshot of a network namespace. Call it on a thread that needs no network: the thread stays in that
/// namespace if it cannot return.
///
/// # Errors
/// The namespace cannot be entered, read or left.
pub fn traces(network: impl AsFd) -> io::Result<NetworkSnapshot> {
    let own = open(OWN_NETWORK, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    let snapshot = read();
    move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::Network))?;
    snapshot
}

fn read() -> io::Result<NetworkSnapshot> {
    let file = |name: &str| format!("/proc/thread-self/net/{name}");
    let sockets = fs::read_to_string(file(SOCKETS))?;
    let mut text = sockets.lines().next().unwrap_or_default().to_owned();
    for name in TRACE_FILES {
        match fs::read_to_string(file(name)) {
            // Not every kernel has all of these files.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => text.push_str(&other?),
        }
    }
    Ok(NetworkSnapshot(text))
}

/// Runs work on a temporary thread.
fn on_new_thread<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let thread = std::thread::Builder::new().spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    /// Snapshots after and before an action.
    fn after<T: 'static>(action: impl FnOnce() -> T + Send + 'static) -> (NetworkSnapshot, NetworkSnapshot) {
        on_new_thread(|| {
            let network = make()?;
            let before = traces(&network)?;
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            let result = action();
            let after = read()?;
            drop(result);
            Ok((after, before))
        })
        .expect("networks are made by root")
    }

    #[test]
    fn an_unused_network_has_the_same_snapshot_as_a_new_one() {
        let (after, before) = after(|| drop(TcpListener::bind("127.0.0.1:0").unwrap()));
        assert_eq!(after, before);
        assert_eq!(traces(make().unwrap()).unwrap(), before);
    }

    #[test]
    fn sent_and_rejected_packets_change_the_snapshot() {
        let sent = || UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", "127.0.0.1:9").map(drop);
        let refused = || UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", "192.0.2.1:9").map(drop);
        for (after, before) in [after(sent), after(refused)] {
            assert_ne!(after, before);
        }
    }

    #[test]
    fn open_sockets_change_the_snapshot() {
        let (port, before) = after(|| TcpListener::bind("127.0.0.1:0").unwrap());
        assert_ne!(port, before);
        let name = SocketAddr::from_abstract_name("caisson").unwrap();
        let (name, before) = after(move || UnixListener::bind_addr(&name).unwrap());
        assert_ne!(name, before);
    }
}
