//! A pool of network namespaces that are lent to sandboxes. A namespace that was not used is lent again, because
//! creating and destroying one is the most expensive part of what a short job needs from the kernel.
//!
//! The kernel's counters tell whether a namespace was used: packets, refused attempts and open sockets. If they
//! differ in any way from those of a new namespace, it is discarded with its sandbox. The counters are read after a
//! delay, because the kernel announces joining or leaving a multicast group a moment later.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use launcher::network::{self, NetworkSnapshot};
use rustix::process::{Resource, getrlimit};

use crate::host::background::Background;

/// The kernel announces a change of multicast membership twice, within a second each.
pub(super) const REST: Duration = Duration::from_secs(3);
/// The maximum number of namespaces that rest, at 0.2 MB each; the rest is discarded. Enough for 150 sandboxes a
/// second.
const MAX_RESTING: usize = 512;
/// Each is an open file. They may take one in this many of the files that the process may open.
const OPEN_FILES_SHARE: u64 = 8;
/// The maximum number that are ready. Returns and requests come in alternating bursts.
const MAX_READY: usize = 32;

/// A pool of unused network namespaces.
pub(super) struct NetworkPool {
    rest: Duration,
    max_resting: usize,
    ready: Arc<Mutex<Vec<OwnedFd>>>,
    resting: Arc<AtomicUsize>,
    /// Checks returned namespaces after their rest. The thread needs no network itself.
    thread: Background,
    /// The counters of a new namespace.
    pristine: Arc<OnceLock<NetworkSnapshot>>,
    /// Whether the kernel denied this server permission to create namespaces.
    is_denied: AtomicBool,
}

impl NetworkPool {
    pub(super) fn new(rest: Duration) -> Self {
        Self {
            rest,
            max_resting: max_resting(getrlimit(Resource::Nofile).current),
            ready: Arc::default(),
            resting: Arc::default(),
            thread: Background::new("networks"),
            pristine: Arc::default(),
            is_denied: AtomicBool::new(false),
        }
    }

    /// Returns a namespace for a new sandbox; `None` if this server cannot create any.
    pub(super) fn lend(&self) -> Option<OwnedFd> {
        let ready = lock(&self.ready).pop();
        if ready.is_some() || self.is_denied.load(Ordering::Relaxed) {
            return ready;
        }
        let is_denied = |error: &io::Error| {
            tracing::debug!(%error, "sandboxes create their networks themselves");
            self.is_denied.store(error.kind() == io::ErrorKind::PermissionDenied, Ordering::Relaxed);
        };
        network::make().inspect_err(is_denied).ok()
    }

    /// Takes back the namespace of a sandbox that is gone with all of its processes.
    pub(super) fn give_back(&self, network: OwnedFd) {
        let place = Place::new(&self.resting);
        if self.resting.load(Ordering::Relaxed) > self.max_resting {
            return;
        }
        let ready = Arc::clone(&self.ready);
        let (pristine, end) = (Arc::clone(&self.pristine), Instant::now() + self.rest);
        self.thread.run(move || {
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            let is_unused = is_unused(&network, &pristine).unwrap_or(false);
            drop(place);
            let mut ready = lock(&ready);
            if is_unused && ready.len() < MAX_READY {
                ready.push(network);
            }
        });
    }
}

/// How many may rest, given the limit on open files.
fn max_resting(files: Option<u64>) -> usize {
    let share = files.map(|files| files / OPEN_FILES_SHARE).and_then(|share| usize::try_from(share).ok());
    share.unwrap_or(MAX_RESTING).min(MAX_RESTING)
}

/// Counts one resting namespace; dropping it decrements the count.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn new(taken: &Arc<AtomicUsize>) -> Self {
        taken.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(taken))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_unused(network: &OwnedFd, pristine: &OnceLock<NetworkSnapshot>) -> io::Result<bool> {
    let counters = network::traces(network)?;
    if pristine.get().is_none() {
        let _ = pristine.set(network::traces(network::make()?)?);
    }
    Ok(pristine.get() == Some(&counters))
}

fn lock(ready: &Mutex<Vec<OwnedFd>>) -> MutexGuard<'_, Vec<OwnedFd>> {
    ready.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    use std::os::fd::AsFd;
    use std::sync::mpsc;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;

    /// Returns a namespace and waits until it was checked.
    fn give_back(networks: &NetworkPool, network: OwnedFd) {
        networks.give_back(network);
        let (sender, receiver) = mpsc::channel();
        networks.thread.run(move || sender.send(()).unwrap());
        receiver.recv().unwrap();
    }

    #[test]
    fn pool_keeps_a_limited_number_of_networks() {
        let networks = NetworkPool::new(Duration::ZERO);
        let lent: Vec<_> = (0..MAX_READY + 2).map(|_| networks.lend().unwrap()).collect();
        assert!(lock(&networks.ready).is_empty());
        lent.into_iter().for_each(|network| give_back(&networks, network));
        assert_eq!(lock(&networks.ready).len(), MAX_READY);
        networks.lend().unwrap();
        assert_eq!(lock(&networks.ready).len(), MAX_READY - 1);
    }

    #[test]
    fn network_with_open_sockets_is_discarded() {
        let networks = NetworkPool::new(Duration::ZERO);
        let network = networks.lend().unwrap();
        let copy = network.try_clone().unwrap();
        let open = std::thread::spawn(move || {
            move_into_link_name_space(copy.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            TcpListener::bind("127.0.0.1:0").unwrap()
        });
        let listener = open.join().unwrap();
        give_back(&networks, network.try_clone().unwrap());
        assert!(lock(&networks.ready).is_empty());
        drop(listener);
        give_back(&networks, network);
        assert_eq!(lock(&networks.ready).len(), 1);
    }

    #[test]
    fn network_with_pending_traffic_is_discarded() {
        let networks = NetworkPool::new(REST);
        let network = networks.lend().unwrap();
        let copy = network.try_clone().unwrap();
        let join_and_leave = move || {
            move_into_link_name_space(copy.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.join_multicast_v4(&Ipv4Addr::new(224, 1, 2, 3), &Ipv4Addr::LOCALHOST).unwrap();
        };
        std::thread::spawn(join_and_leave).join().unwrap();
        give_back(&networks, network);
        assert!(lock(&networks.ready).is_empty());
    }

    #[test]
    fn networks_above_the_resting_limit_are_discarded() {
        let networks = NetworkPool::new(Duration::from_secs(60));
        let network = networks.lend().unwrap();
        for _ in 0..networks.max_resting + 10 {
            networks.give_back(network.try_clone().unwrap());
        }
        assert_eq!(networks.resting.load(Ordering::Relaxed), networks.max_resting);
    }

    #[test]
    fn resting_networks_leave_file_descriptors_free() {
        assert_eq!(max_resting(Some(1024)), 128);
        assert_eq!(max_resting(Some(1 << 20)), MAX_RESTING);
        assert_eq!(max_resting(None), MAX_RESTING);
    }
}
