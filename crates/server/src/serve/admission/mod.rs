//! Connection limits.
//!
//! A connection without a running request is idle: it has sent nothing yet, its TLS handshake or request head is
//! incomplete, or it waits for the next request. At the limit, the server closes the connection that has been idle
//! for longest, of the address with the most connections. Clients that hold connections without sending anything
//! therefore cannot lock others out.
//!
//! Connections with a running request are never closed. The last connections are reserved for callers with a key and
//! for health checks ([`reserve`]).

mod reserve;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub(crate) use reserve::{HeldBody, keep_reserve};

use crate::settings::ServerSettings;

/// The minimum time that an idle connection stays open: a new one needs time to send its request. If all are new, the
/// next client waits.
const GRACE: Duration = Duration::from_secs(1);
/// The interval at which closed connections are logged.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// The connections of a server.
pub(crate) struct Admission {
    bounds: Bounds,
    open: Mutex<Open>,
    /// Notified when a connection closes or becomes idle.
    changed: Notify,
}

/// The limits.
#[derive(Debug, Clone)]
struct Bounds {
    most: usize,
    per_address: usize,
    /// The part of `most` for callers with a key and for health checks.
    reserved: usize,
    /// Exempt from `per_address`, because they connect for many clients.
    trusted_proxies: Vec<IpAddr>,
    grace: Duration,
}

#[derive(Default)]
struct Open {
    connections: HashMap<u64, Connection>,
    by_source: HashMap<Source, usize>,
    /// A counter for connection numbers and for the order in which connections became idle.
    last: u64,
    closed: u64,
    logged: Option<Instant>,
}

struct Connection {
    source: Source,
    /// The number of running requests and open WebSockets.
    uses: usize,
    /// The client has not read the last response completely.
    is_writing: Arc<AtomicBool>,
    idle_since: u64,
    idle_at: Instant,
    evicted: CancellationToken,
}

impl Connection {
    /// The time until it may be closed. `None` while it is busy.
    fn evictable_in(&self, grace: Duration) -> Option<Duration> {
        (!self.is_busy()).then(|| grace.saturating_sub(self.idle_at.elapsed()))
    }

    fn is_busy(&self) -> bool {
        self.uses > 0 || self.is_writing.load(Ordering::Relaxed)
    }
}

/// The unit of the per-address limit: an IPv4 address or an IPv6 /64 network, because one machine may own all
/// addresses of such a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Source(IpAddr);

impl Source {
    fn of(peer: IpAddr) -> Self {
        match peer.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let network = address.to_bits() & (u128::MAX << 64);
                Self(IpAddr::V6(Ipv6Addr::from_bits(network)))
            }
            other => Self(other),
        }
    }
}

/// Who may still send requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Availability {
    /// Everybody.
    Everyone,
    /// Callers with a key, and health checks.
    KeyedCallers,
    /// Only health checks.
    HealthChecks,
}

impl Admission {
    pub(crate) fn new(settings: &ServerSettings) -> Arc<Self> {
        Self::with_grace(settings, GRACE)
    }

    fn with_grace(settings: &ServerSettings, grace: Duration) -> Arc<Self> {
        let most = settings.max_connections.max(1);
        let bounds = Bounds {
            most,
            per_address: settings.max_connections_per_address.max(1),
            reserved: settings.reserved_connections.min(most - 1),
            trusted_proxies: settings.trusted_proxies.clone(),
            grace,
        };
        Arc::new(Self { bounds, open: Mutex::default(), changed: Notify::new() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another connection can be admitted.
    pub(crate) async fn has_room(&self) {
        loop {
            let changed = self.changed.notified();
            let next = {
                let open = self.open();
                if open.connections.len() < self.bounds.most {
                    return;
                }
                let closable =
                    open.connections.values().filter_map(|one| one.evictable_in(self.bounds.grace));
                closable.min()
            };
            match next {
                Some(Duration::ZERO) => return,
                Some(next) => drop(tokio::time::timeout(next, changed).await),
                None => changed.await,
            }
        }
    }

    /// Admits a connection. `None` if its address is at its limit and all its connections are busy.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr, token: TaskTrackerToken) -> Option<Arc<Slot>> {
        let source = Source::of(peer);
        let mut open = self.open();
        let of_source = open.by_source.get(&source).copied().unwrap_or(0);
        if of_source >= self.bounds.per_address && self.is_bounded(peer) {
            let is_closed = open.close_idle(|connection| connection.source == source);
            open.log_eviction(peer);
            if !is_closed {
                return None;
            }
        }
        let is_closable = |one: &Connection| one.evictable_in(self.bounds.grace) == Some(Duration::ZERO);
        if open.connections.len() >= self.bounds.most && open.close_idle(is_closable) {
            open.log_eviction(peer);
        }
        open.last += 1;
        let (number, evicted) = (open.last, CancellationToken::new());
        let is_writing = Arc::new(AtomicBool::new(false));
        let connection = Connection {
            source,
            uses: 0,
            is_writing: Arc::clone(&is_writing),
            idle_since: number,
            idle_at: Instant::now(),
            evicted: evicted.clone(),
        };
        open.connections.insert(number, connection);
        *open.by_source.entry(source).or_default() += 1;
        Some(Arc::new(Slot { admission: Arc::clone(self), number, evicted, is_writing, _token: token }))
    }

    /// Whether the per-address limit applies. This machine and proxies connect for many clients.
    fn is_bounded(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        !peer.is_loopback() && !self.bounds.trusted_proxies.iter().any(|proxy| proxy.to_canonical() == peer)
    }

    fn availability(&self) -> Availability {
        let Bounds { most, reserved, .. } = self.bounds;
        let open = self.open();
        // Count the busy connections only if there are many.
        if open.connections.len() <= most - reserved {
            return Availability::Everyone;
        }
        let busy = open.connections.values().filter(|connection| connection.is_busy()).count();
        // A quarter of the reserve is for health checks only.
        if busy <= most - reserved {
            Availability::Everyone
        } else if busy <= most - reserved.div_ceil(4) {
            Availability::KeyedCallers
        } else {
            Availability::HealthChecks
        }
    }
}

impl Open {
    /// Closes the connection that has been idle for longest, of the address with the most connections. Returns
    /// `false` if none is idle.
    fn close_idle(&mut self, may_be: impl Fn(&Connection) -> bool) -> bool {
        let idle = self.connections.iter().filter(|(_, one)| !one.is_busy() && may_be(one));
        let rank = |one: &Connection| {
            let beside = self.by_source.get(&one.source).copied().unwrap_or(0);
            (beside, std::cmp::Reverse(one.idle_since))
        };
        let Some(number) = idle.max_by_key(|(_, one)| rank(one)).map(|(number, _)| *number) else {
            return false;
        };
        if let Some(connection) = self.remove(number) {
            connection.evicted.cancel();
        }
        self.closed += 1;
        true
    }

    fn remove(&mut self, number: u64) -> Option<Connection> {
        let connection = self.connections.remove(&number)?;
        if let Some(count) = self.by_source.get_mut(&connection.source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&connection.source);
            }
        }
        Some(connection)
    }

    fn log_eviction(&mut self, peer: IpAddr) {
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_PAUSE) {
            self.logged = Some(Instant::now());
            tracing::warn!(
                newest = %peer, closed = self.closed,
                "too many connections: those that are idle for longest are closed; see [http] max_connections"
            );
        }
    }
}

/// An admitted connection. It counts towards the limits until this is dropped.
pub(crate) struct Slot {
    admission: Arc<Admission>,
    number: u64,
    evicted: CancellationToken,
    is_writing: Arc<AtomicBool>,
    _token: TaskTrackerToken,
}

impl Slot {
    /// Waits until the connection must be closed.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Records whether the server is waiting for the client to read.
    pub(crate) fn set_writing(&self, is_writing: bool) {
        if self.is_writing.swap(is_writing, Ordering::Relaxed) && !is_writing {
            self.admission.changed.notify_waiters();
        }
    }

    /// Marks the connection as in use until the returned value and its clones are dropped.
    pub(crate) fn in_use(self: &Arc<Self>) -> SlotUse {
        self.change_uses(|uses| uses + 1);
        SlotUse(Arc::new(Use(Arc::clone(self))))
    }

    fn change_uses(&self, change: impl FnOnce(usize) -> usize) {
        let mut open = self.admission.open();
        open.last += 1;
        let now = open.last;
        if let Some(connection) = open.connections.get_mut(&self.number) {
            connection.uses = change(connection.uses);
            connection.idle_since = now;
            connection.idle_at = Instant::now();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.admission.open().remove(self.number);
        self.admission.changed.notify_waiters();
    }
}

/// A running request. A WebSocket outlives the request that opened it and keeps this value.
#[derive(Clone)]
pub(crate) struct SlotUse(Arc<Use>);

struct Use(Arc<Slot>);

impl SlotUse {
    /// Who may still send requests, with this one counted.
    pub(crate) fn availability(&self) -> Availability {
        self.0.0.admission.availability()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.change_uses(|uses| uses.saturating_sub(1));
        self.0.admission.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::*;

    fn admission(most: usize, per_address: usize, reserved: usize) -> Arc<Admission> {
        admission_with_grace(most, per_address, reserved, Duration::ZERO)
    }

    fn admission_with_grace(
        most: usize,
        per_address: usize,
        reserved: usize,
        grace: Duration,
    ) -> Arc<Admission> {
        let settings = ServerSettings {
            max_connections: most,
            max_connections_per_address: per_address,
            reserved_connections: reserved,
            trusted_proxies: vec!["10.0.0.9".parse().unwrap()],
            ..ServerSettings::default()
        };
        Admission::with_grace(&settings, grace)
    }

    fn try_open(admission: &Arc<Admission>, peer: &str) -> Option<Arc<Slot>> {
        admission.admit(peer.parse().unwrap(), TaskTracker::new().token())
    }

    fn open(admission: &Arc<Admission>, peer: &str) -> Arc<Slot> {
        try_open(admission, peer).unwrap()
    }

    fn is_closed(slot: &Slot) -> bool {
        slot.evicted.is_cancelled()
    }

    #[test]
    fn longest_idle_connection_of_the_busiest_address_is_closed() {
        let all = admission(4, 4, 0);
        let other = open(&all, "192.0.2.1");
        let flood: Vec<_> = (0..3).map(|_| open(&all, "192.0.2.66")).collect();
        let newest = open(&all, "192.0.2.2");
        assert!(is_closed(&flood[0]) && !is_closed(&other) && !is_closed(&newest));
        // The order of idleness counts from the last use, not from the time of opening.
        drop(flood[1].in_use());
        open(&all, "192.0.2.3");
        assert!(is_closed(&flood[2]) && !is_closed(&flood[1]) && !is_closed(&other));
    }

    #[tokio::test]
    async fn busy_connections_are_kept_and_new_ones_wait() {
        let all = admission(2, 2, 0);
        let first = open(&all, "127.0.0.1");
        let (answering, writing) = (first.in_use(), open(&all, "127.0.0.1"));
        writing.set_writing(true);
        let waiting = {
            let all = Arc::clone(&all);
            tokio::spawn(async move { all.has_room().await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        let copy = answering.clone();
        drop(answering);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "a WebSocket may still be open");
        drop(copy);
        waiting.await.unwrap();
        let third = open(&all, "127.0.0.1");
        assert!(is_closed(&first) && !is_closed(&writing));
        writing.set_writing(false);
        open(&all, "127.0.0.1");
        assert!(is_closed(&writing) && !is_closed(&third));
    }

    #[tokio::test]
    async fn new_connections_have_a_grace_period() {
        let all = admission_with_grace(2, 2, 0, Duration::from_secs(3600));
        let (first, second) = (open(&all, "127.0.0.1"), open(&all, "127.0.0.1"));
        let waiting = {
            let all = Arc::clone(&all);
            tokio::spawn(async move { all.has_room().await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
        assert!(!is_closed(&second));
    }

    #[test]
    fn connections_per_address_are_limited() {
        let all = admission(100, 2, 0);
        let first = open(&all, "192.0.2.1");
        let (second, third) = (open(&all, "192.0.2.1"), open(&all, "192.0.2.1"));
        assert!(is_closed(&first) && !is_closed(&second));
        let uses = (second.in_use(), third.in_use());
        assert!(try_open(&all, "192.0.2.1").is_none(), "requests are answered on both");
        assert!(try_open(&all, "::ffff:192.0.2.1").is_none(), "the same address");
        drop(uses);
        assert!(try_open(&all, "192.0.2.1").is_some());
        // An IPv6 /64 network is one client. Loopback and a proxy are many.
        let held: Vec<_> = (0..2).map(|_| open(&all, "2001:db8::1").in_use()).collect();
        assert!(try_open(&all, "2001:db8::2").is_none() && try_open(&all, "2001:db8:0:1::1").is_some());
        for many in ["127.0.0.1", "::1", "10.0.0.9"] {
            let several: Vec<_> = (0..9).map(|_| open(&all, many).in_use()).collect();
            assert_eq!(several.len(), 9, "{many}");
        }
        drop((held, first, second, third));
        assert!(all.open().by_source.is_empty() && all.open().connections.is_empty(), "none is left");
    }

    #[test]
    fn the_last_connections_are_reserved() {
        let all = admission(12, 12, 8);
        let mut uses: Vec<_> = (0..4).map(|_| open(&all, "127.0.0.1").in_use()).collect();
        assert_eq!(all.availability(), Availability::Everyone);
        let idle: Vec<_> = (0..8).map(|_| open(&all, "127.0.0.1")).collect();
        assert_eq!(all.availability(), Availability::Everyone, "those that are idle take nothing away");
        uses.extend(idle.iter().take(1).map(Slot::in_use));
        assert_eq!(all.availability(), Availability::KeyedCallers);
        uses.extend(idle.iter().skip(1).take(6).map(Slot::in_use));
        assert_eq!(all.availability(), Availability::HealthChecks);
        uses.truncate(4);
        assert_eq!(all.availability(), Availability::Everyone);
        assert_eq!(admission(1, 1, 64).bounds.reserved, 0, "one is for everybody");
    }
}
