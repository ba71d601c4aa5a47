//! Networks that are lent to sandboxes. One that was not used is lent again: making one and taking it down is what costs most
//! of all that a short job needs of the kernel.
//!
//! Whether it was used is what the kernel says: packets, refused attempts and open sockets are counted. A network of which it tells
//! anything else than of a new one goes with its sandbox. It is asked after a while: who has just joined or left a group of receivers is
//! told to the others a moment later.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use launcher::network::{self, Traces};
use rustix::process::{Resource, getrlimit};

use crate::background::Background;

/// The kernel tells others of a group twice, within a second each.
pub(super) const REST: Duration = Duration::from_secs(3);
/// So many rest, of 0.2 MB each; the others go at once. Enough for 150 sandboxes a second.
const MOST_RESTING: usize = 512;
/// They are open files: of those that this process may have they take one in so many.
const FILES_FOR_ONE: u64 = 8;
/// So many are ready: those that have rested and those that are wanted take turns, in bursts.
const MOST_READY: usize = 32;

/// Networks that nothing was done in.
pub(super) struct Networks {
    rest: Duration,
    most_resting: usize,
    ready: Arc<Mutex<Vec<OwnedFd>>>,
    resting: Arc<AtomicUsize>,
    /// Looks at those that have rested; it needs no network itself.
    thread: Background,
    /// What a new one tells.
    unused: Arc<OnceLock<Traces>>,
    /// Whether this server was told that it may not make any.
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

    /// One for a new sandbox; `None` where this server cannot make any.
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

    /// Takes back what was lent to a sandbox that is gone, and every process of it.
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

/// How many rest where so many files may be open.
fn most_resting(files: Option<u64>) -> usize {
    let share = files.map(|files| files / FILES_FOR_ONE).and_then(|share| usize::try_from(share).ok());
    share.unwrap_or(MOST_RESTING).min(MOST_RESTING)
}

/// The place of one that rests; given back when this is dropped.
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

    /// Gives a network back and waits until it was looked at.
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
