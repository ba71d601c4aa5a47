//! Connections of a sandbox that has no network namespace.
//!
//! The kernel stops every `connect` of what runs here and asks the guest. Whatever address was meant, the answer is the
//! same: the socket is replaced by one that is connected to the entrance for outgoing connections. So nothing here can
//! reach any other address, and nothing that a program says about an address has to be believed.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use crate::notify::{self, Question};

/// Answers for ever.
pub(crate) async fn answer(questions: AsyncFd<OwnedFd>, port: u16) {
    let questions = std::rc::Rc::new(questions);
    loop {
        let Ok(mut guard) = questions.readable().await else { return };
        match guard.try_io(|fd| notify::receive(fd.get_ref())) {
            Ok(Ok(question)) => {
                spawn_local(lead(std::rc::Rc::clone(&questions), question, port));
            }
            // The process that asked is gone.
            Ok(Err(_)) => tokio::task::yield_now().await,
            Err(_would_block) => {}
        }
    }
}

async fn lead(questions: std::rc::Rc<AsyncFd<OwnedFd>>, question: Question, port: u16) {
    let entrance = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let connected = match TcpStream::connect(entrance).await {
        Ok(stream) => stream.into_std(),
        Err(error) => Err(error),
    };
    let flags = flags(&question);
    let placed = connected.and_then(|stream| {
        stream.set_nonblocking(flags & libc::O_NONBLOCK != 0)?;
        notify::replace(questions.get_ref(), &question, &stream, flags & libc::O_CLOEXEC != 0)
    });
    // Nobody waits for an answer when the process is gone.
    let _ = notify::reply(questions.get_ref(), &question, placed.map_err(|_| libc::ECONNREFUSED));
}

/// The flags of the socket that shall be connected; those of a plain one where they cannot be read.
fn flags(question: &Question) -> i32 {
    let path = format!("/proc/{}/fdinfo/{}", question.thread, question.descriptor);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let octal = text.lines().find_map(|line| line.strip_prefix("flags:"));
    octal.and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(libc::O_CLOEXEC)
}
