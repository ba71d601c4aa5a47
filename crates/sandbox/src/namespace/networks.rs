//! Networks that are lent to sandboxes. One that was not used is lent again: making one and taking it down is what costs most
//! of all that a short job needs of the kernel.
//!
//! Whether it was used is what the kernel says: every packet, every refused attempt, every socket is counted. A network of
//! which it tells anything else than of a new one goes with its sandbox.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use launcher::network::{self, Traces};

use crate::background::Background;

/// So many are kept: those that end and those that begin take turns.
const MOST_KEPT: usize = 8;

/// Networks that nothing was done in.
pub(super) struct Networks {
    ready: Arc<Mutex<Vec<OwnedFd>>>,
    /// Looks at those that come back; it needs no network itself.
    thread: Background,
    /// What a new one tells.
    unused: Arc<OnceLock<Traces>>,
}

impl Networks {
    pub(super) fn new() -> Self {
        Self { ready: Arc::default(), thread: Background::new("networks"), unused: Arc::default() }
    }

    /// One for a new sandbox.
    pub(super) fn lend(&self) -> io::Result<OwnedFd> {
        let ready = lock(&self.ready).pop();
        ready.map_or_else(network::make, Ok)
    }

    /// Takes back what was lent to a sandbox that is gone, and every process of it.
    pub(super) fn take_back(&self, network: OwnedFd) {
        if lock(&self.ready).len() >= MOST_KEPT {
            return;
        }
        let (ready, unused) = (Arc::clone(&self.ready), Arc::clone(&self.unused));
        self.thread.later(move || {
            if is_unused(&network, &unused).unwrap_or(false) {
                lock(&ready).push(network);
            }
        });
    }
}

fn is_unused(network: &OwnedFd, unused: &OnceLock<Traces>) -> io::Result<bool> {
    let told = network::traces(network)?;
    if unused.get().is_none() {
        let _ = unused.set(network::traces(network::make()?)?);
    }
    Ok(unused.get() == Some(&told))
}

fn lock(ready: &Mutex<Vec<OwnedFd>>) -> MutexGuard<'_, Vec<OwnedFd>> {
    ready.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::sync::mpsc;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;

    /// Gives a network back and waits until it was looked at.
    fn take_back(networks: &Networks, network: OwnedFd) {
        networks.take_back(network);
        let (sender, receiver) = mpsc::channel();
        networks.thread.later(move || sender.send(()).unwrap());
        receiver.recv().unwrap();
    }

    #[test]
    fn some_are_kept_and_no_more() {
        let networks = Networks::new();
        let lent: Vec<_> = (0..MOST_KEPT + 2).map(|_| networks.lend().unwrap()).collect();
        assert!(lock(&networks.ready).is_empty());
        lent.into_iter().for_each(|network| take_back(&networks, network));
        assert_eq!(lock(&networks.ready).len(), MOST_KEPT);
        networks.lend().unwrap();
        assert_eq!(lock(&networks.ready).len(), MOST_KEPT - 1);
    }

    #[test]
    fn one_that_something_is_still_open_in_is_not_kept() {
        let networks = Networks::new();
        let network = networks.lend().unwrap();
        let copy = network.try_clone().unwrap();
        let open = std::thread::spawn(move || {
            move_into_link_name_space(copy.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            TcpListener::bind("127.0.0.1:0").unwrap()
        });
        let listener = open.join().unwrap();
        take_back(&networks, network.try_clone().unwrap());
        assert!(lock(&networks.ready).is_empty());
        drop(listener);
        take_back(&networks, network);
        assert_eq!(lock(&networks.ready).len(), 1);
    }
}
