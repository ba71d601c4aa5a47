//! Networks that are lent to sandboxes. One that was not used is lent again: making one and taking it down is what costs most
//! of all that a short job needs of the kernel.
//!
//! Whether it was used is what the kernel says: every packet, every refused attempt, every socket is counted. A network of
//! which it tells anything else than of a new one goes with its sandbox.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use launcher::network::{self, Traces};

use crate::background::Background;
use crate::spec::SandboxId;

/// Networks of this server. They are not written down: those that sandboxes still have when the server ends go with them.
pub(super) struct Networks {
    shelf: Arc<Mutex<Shelf>>,
    /// Looks at those that come back; it needs no network itself.
    thread: Background,
    /// What a new one tells.
    unused: Arc<OnceLock<Traces>>,
}

#[derive(Default)]
struct Shelf {
    lent: HashMap<SandboxId, OwnedFd>,
    ready: Vec<OwnedFd>,
}

impl Networks {
    pub(super) fn new() -> Self {
        Self { shelf: Arc::default(), thread: Background::new("networks"), unused: Arc::default() }
    }

    /// A network for a sandbox that nothing was done in.
    pub(super) fn lend(&self, id: SandboxId) -> io::Result<OwnedFd> {
        let ready = lock(&self.shelf).ready.pop();
        let network = ready.map_or_else(network::make, Ok)?;
        let copy = network.try_clone()?;
        lock(&self.shelf).lent.insert(id, network);
        Ok(copy)
    }

    /// The sandbox is gone, and every process of it.
    pub(super) fn take_back(&self, id: SandboxId) {
        let Some(network) = lock(&self.shelf).lent.remove(&id) else { return };
        let (shelf, unused) = (Arc::clone(&self.shelf), Arc::clone(&self.unused));
        self.thread.later(move || {
            if is_unused(&network, &unused).unwrap_or(false) {
                let mut shelf = lock(&shelf);
                shelf.ready.push(network);
                // Few are left when it becomes quiet.
                let most = shelf.lent.len().max(1);
                shelf.ready.truncate(most);
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

fn lock(shelf: &Mutex<Shelf>) -> std::sync::MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Gives a network back and waits until it was looked at.
    fn take_back(networks: &Networks, id: SandboxId) {
        networks.take_back(id);
        let (sender, receiver) = mpsc::channel();
        networks.thread.later(move || sender.send(()).unwrap());
        receiver.recv().unwrap();
    }

    #[test]
    fn as_many_are_kept_as_are_lent_and_one_when_it_is_quiet() {
        let networks = Networks::new();
        let ids: Vec<_> = (0..5).map(|_| SandboxId::generate()).collect();
        let lent: Vec<_> = ids.iter().map(|id| networks.lend(*id).unwrap()).collect();
        let ready = |count: usize| assert_eq!(lock(&networks.shelf).ready.len(), count);
        for (id, kept) in ids.iter().zip([1, 2, 2, 1, 1]) {
            take_back(&networks, *id);
            ready(kept);
        }
        take_back(&networks, ids[0]);
        ready(1);
        drop(lent);
    }

    #[test]
    fn one_that_something_is_still_open_in_is_not_kept() {
        let networks = Networks::new();
        let id = SandboxId::generate();
        let network = networks.lend(id).unwrap();
        let (sender, receiver) = mpsc::channel();
        let holder = std::thread::spawn(move || {
            use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
            use std::os::fd::AsFd;
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            receiver.recv().unwrap();
            drop(listener);
        });
        // The other thread may not have opened it yet.
        while network_is_unused(&networks, id) {
            std::thread::yield_now();
        }
        take_back(&networks, id);
        assert_eq!(lock(&networks.shelf).ready.len(), 0);
        sender.send(()).unwrap();
        holder.join().unwrap();
    }

    fn network_is_unused(networks: &Networks, id: SandboxId) -> bool {
        let network = lock(&networks.shelf).lent[&id].try_clone().unwrap();
        is_unused(&network, &networks.unused).unwrap()
    }
}
