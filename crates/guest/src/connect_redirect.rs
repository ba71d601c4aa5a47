//! Redirects the connections of a sandbox without a network namespace.
//!
//! The kernel suspends every `connect` in the sandbox and notifies the guest through seccomp. Whatever the
//! destination, the guest replaces the socket with one that is connected to the egress port. Programs therefore
//! cannot reach any other address, and the guest does not have to trust the addresses that they pass.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use crate::seccomp::{self, ConnectNotification};

/// Answers seccomp notifications until the listener fails.
pub(crate) async fn answer(notifications: AsyncFd<OwnedFd>, port: u16) {
    let notifications = std::rc::Rc::new(notifications);
    loop {
        let Ok(mut guard) = notifications.readable().await else { return };
        match guard.try_io(|fd| seccomp::receive(fd.get_ref())) {
            Ok(Ok(question)) => {
                spawn_local(redirect(std::rc::Rc::clone(&notifications), question, port));
            }
            // The process that called `connect` is gone.
            Ok(Err(_)) => tokio::task::yield_now().await,
            Err(_would_block) => {}
        }
    }
}

async fn redirect(notifications: std::rc::Rc<AsyncFd<OwnedFd>>, question: ConnectNotification, port: u16) {
    let egress_address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let connected = match TcpStream::connect(egress_address).await {
        Ok(stream) => stream.into_std(),
        Err(error) => Err(error),
    };
    let flags = flags(&question);
    let placed = connected.and_then(|stream| {
        stream.set_nonblocking(flags & libc::O_NONBLOCK != 0)?;
        seccomp::replace(notifications.get_ref(), &question, &stream, flags & libc::O_CLOEXEC != 0)
    });
    // An error means that the process is gone and nobody waits for a reply.
    let _ = seccomp::reply(notifications.get_ref(), &question, placed.map_err(|_| libc::ECONNREFUSED));
}

/// The flags of the socket being connected, or those of a plain socket if they cannot be read.
fn flags(question: &ConnectNotification) -> i32 {
    let path = format!("/proc/{}/fdinfo/{}", question.thread, question.descriptor);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let octal = text.lines().find_map(|line| line.strip_prefix("flags:"));
    octal.and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(libc::O_CLOEXEC)
}
