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

use launcher::network::{self, Traces};
use rustix::process::{Resource, getrlimit};

use crate::background::Background;

/// The kernel announces a change of multicast membership twice, within a second each.
pub(super) const REST: Duration = Duration::from_secs(3);
/// The maximum number of namespaces that rest, at 0.2 MB each; the rest is discarded. Enough for 150 sandboxes a
/// second.
const MOST_RESTING: usize = 512;
/// Each is an open file. They may take one in this many of the files that the process may open.
const FILES_FOR_ONE: u64 = 8;
/// The maximum number that are ready. Returns and requests come in alternating bursts.
const MOST_READY: usize = 32;

/// A pool of unused network namespaces.
pub(super) struct Networks {
    rest: Duration,
    most_resting: usize,
    ready: Arc<Mutex<Vec<OwnedFd>>>,
    resting: Arc<AtomicUsize>,
    /// Checks returned namespaces after their rest. The thread needs no network itself.
    thread: Background,
    /// The counters of a new namespace.
    unused: Arc<OnceLock<Traces>>,
    /// Whether the kernel denied this server permission to create namespaces.
    refused: AtomicBool,
}

impl Networks {
    pub(super) fn new(rest: Duration) -> Self {
        Self {
            rest,
            most_resting: most_resting(getrlimit(Resource::Nofile).current),
            ready: Arc::default(),
            resting: Arc::default(),
            thread: Background::new("networks"),
            unused: Arc::default(),
            refused: AtomicBool::new(false),
        }
    }

    /// Returns a namespace for a new sandbox; `None` if this server cannot create any.
    pub(super) fn lend(&self) -> Option<OwnedFd> {
        let ready = lock(&self.ready).pop();
        if ready.is_some() || self.refused.load(Ordering::Relaxed) {
            return ready;
        }
        let refused = |error: &io::Error| {
            tracing::debug!(%error, "sandboxes make their networks themselves");
            self.refused.store(error.kind() == io::ErrorKind::PermissionDenied, Ordering::Relaxed);
        };
        network::make().inspect_err(refused).ok()
    }

    /// Takes back the namespace of a sandbox that is gone with all of its processes.
    pub(super) fn take_back(&self, network: OwnedFd) {
        let place = Place::new(&self.resting);
        if self.resting.load(Ordering::Relaxed) > self.most_resting {
            return;
        }
        let ready = Arc::clone(&self.ready);
        let (unused, end) = (Arc::clone(&self.unused), Instant::now() + self.rest);
        self.thread.later(move || {
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            let is_unused = is_unused(&network, &unused).unwrap_or(false);
            drop(place);
            let mut ready = lock(&ready);
            if is_unused && ready.len() < MOST_READY {
                ready.push(network);
            }
        });
    }
}

/// How many may rest, given the limit on open files.
fn most_resting(files: Option<u64>) -> usize {
    let share = files.map(|files| files / FILES_FOR_ONE).and_then(|share| usize::try_from(share).ok());
    share.unwrap_or(MOST_RESTING).min(MOST_RESTING)
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
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    use std::os::fd::AsFd;
    use std::sync::mpsc;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;

    /// Returns a namespace and waits until it was checked.
    fn take_back(networks: &Networks, network: OwnedFd) {
        networks.take_back(network);
        let (sender, receiver) = mpsc::channel();
        networks.thread.later(move || sender.send(()).unwrap());
        receiver.recv().unwrap();
    }

    #[test]
    fn some_are_kept_and_no_more() {
        let networks = Networks::new(Duration::ZERO);
        let lent: Vec<_> = (0..MOST_READY + 2).map(|_| networks.lend().unwrap()).collect();
        assert!(lock(&networks.ready).is_empty());
        lent.into_iter().for_each(|network| take_back(&networks, network));
        assert_eq!(lock(&networks.ready).len(), MOST_READY);
        networks.lend().unwrap();
        assert_eq!(lock(&networks.ready).len(), MOST_READY - 1);
    }

    #[test]
    fn one_that_something_is_still_open_in_is_not_kept() {
        let networks = Networks::new(Duration::ZERO);
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

    #[test]
    fn one_that_something_is_still_sent_in_is_not_kept() {
        let networks = Networks::new(REST);
        let network = networks.lend().unwrap();
        let copy = network.try_clone().unwrap();
        let join_and_leave = move || {
            move_into_link_name_space(copy.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.join_multicast_v4(&Ipv4Addr::new(224, 1, 2, 3), &Ipv4Addr::LOCALHOST).unwrap();
        };
        std::thread::spawn(join_and_leave).join().unwrap();
        take_back(&networks, network);
        assert!(lock(&networks.ready).is_empty());
    }

    #[test]
    fn a_crowd_is_let_go_at_once() {
        let networks = Networks::new(Duration::from_secs(60));
        let network = networks.lend().unwrap();
        for _ in 0..networks.most_resting + 10 {
            networks.take_back(network.try_clone().unwrap());
        }
        assert_eq!(networks.resting.load(Ordering::Relaxed), networks.most_resting);
    }

    #[test]
    fn those_that_rest_leave_files_for_others() {
        assert_eq!(most_resting(Some(1024)), 128);
        assert_eq!(most_resting(Some(1 << 20)), MOST_RESTING);
        assert_eq!(most_resting(None), MOST_RESTING);
    }
}
