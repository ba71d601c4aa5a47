//! Limits how often refusals are logged and how fast they are answered, so that a program that retries in a loop
//! fills neither the log nor the disk. Refusals that are not logged are counted in the next one that is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::Connection;
use crate::refusal::ReasonCode;

/// How many refusals of each kind are logged individually.
const LOGGED_PER_KIND: u32 = 20;
/// How many kinds are distinguished.
const MAX_KINDS: usize = 256;
/// How many refusals are logged before all further ones count as one kind.
const MAX_LOGGED: u64 = 5000;
/// After that, how often a kind's count is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The sustained rate: each refusal uses up this much time.
const COST: Duration = Duration::from_millis(10);
/// How far refusals may run ahead of that rate.
const MAX_BURST: Duration = Duration::from_secs(1);
/// The maximum delay of a client.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Target host, port and reason. Refusals with the same kind count as of_kind.
type Kind = (String, u16, Option<ReasonCode>);

/// Counts the refusals of one proxy.
#[derive(Debug)]
pub(crate) struct RefusalLimiter {
    state: Mutex<LimiterState>,
    started: Instant,
    /// When the refusals so far would have occurred at the sustained rate, in microseconds after `started`.
    paid_until: AtomicU64,
}

#[derive(Debug, Default)]
struct LimiterState {
    all: u64,
    kinds: HashMap<Kind, KindState>,
}

#[derive(Debug)]
struct KindState {
    logged: u32,
    at: Instant,
    held: u64,
    newest: Option<Connection>,
}

impl RefusalLimiter {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default(), started: Instant::now(), paid_until: AtomicU64::new(0) }
    }

    /// Counts a refusal and returns it, with the number of refusals it stands for, if it should be logged now.
    pub(crate) fn count_refusal(&self, mut connection: Connection) -> Option<Connection> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = (connection.host.clone(), connection.port, connection.code);
        let is_known = state.kinds.contains_key(&kind) || state.kinds.len() < MAX_KINDS;
        let kind = if is_known && state.all < MAX_LOGGED { kind } else { Kind::default() };
        let now = Instant::now();
        let of_kind = state.kinds.entry(kind).or_insert_with(|| KindState {
            logged: 0,
            at: now,
            held: 0,
            newest: None,
        });
        if of_kind.logged >= LOGGED_PER_KIND && now.duration_since(of_kind.at) < LOG_INTERVAL {
            of_kind.held += 1;
            of_kind.newest = Some(connection);
            return None;
        }
        of_kind.logged = of_kind.logged.saturating_add(1);
        of_kind.at = now;
        of_kind.newest = None;
        connection.repeated = std::mem::take(&mut of_kind.held);
        state.all += 1;
        Some(connection)
    }

    /// Returns the refusals that were counted but not logged.
    pub(crate) fn held(&self) -> Vec<Connection> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = Vec::new();
        for of_kind in state.kinds.values_mut() {
            let count = std::mem::take(&mut of_kind.held);
            if let Some(mut connection) = of_kind.newest.take() {
                connection.repeated = count.saturating_sub(1);
                held.push(connection);
            }
        }
        held.sort_by_key(|connection| connection.id);
        held
    }

    /// Counts a refusal. Returns until when to delay the client if there are too many.
    pub(crate) fn pause(&self) -> Option<Instant> {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let now = micros(self.started.elapsed());
        let cost = micros(COST);
        let pay = |until: u64| Some(until.max(now).saturating_add(cost));
        let before = self.paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).unwrap_or(now);
        let ahead = Duration::from_micros(before.saturating_sub(now));
        let late = ahead.checked_sub(MAX_BURST).filter(|late| !late.is_zero())?;
        Some(Instant::now() + late.min(LONGEST_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(id: u64, host: &str) -> Connection {
        Connection { host: host.into(), port: 443, ..Connection::numbered(id) }
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_refusals_are_counted() {
        let refusals = RefusalLimiter::new();
        let mut counted = 0;
        let mut logged = 0;
        for id in 0..1000 {
            if let Some(connection) = refusals.count_refusal(refused(id, "a.example")) {
                logged += 1;
                counted += 1 + connection.repeated;
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert!((20..40).contains(&logged), "{logged}");
        for connection in refusals.held() {
            counted += 1 + connection.repeated;
        }
        assert_eq!(counted, 1000);
        assert!(refusals.held().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_random_names_do_not_fill_the_log() {
        let refusals = RefusalLimiter::new();
        let hosts = (0..100_000u64).map(|id| (id, format!("h{id}.example")));
        let logged: Vec<Connection> =
            hosts.filter_map(|(id, host)| refusals.count_refusal(refused(id, &host))).collect();
        assert!(logged.len() <= MAX_KINDS + LOGGED_PER_KIND as usize, "{}", logged.len());
        let counted = logged.iter().chain(&refusals.held()).map(|logged| 1 + logged.repeated).sum::<u64>();
        assert_eq!(counted, 100_000);
    }

    #[tokio::test(start_paused = true)]
    async fn many_refusals_at_once_are_slowed_and_few_are_not() {
        let refusals = RefusalLimiter::new();
        assert!((0..100).all(|_| refusals.pause().is_none()));
        let late = (0..200).filter_map(|_| refusals.pause()).count();
        assert!(late >= 199, "{late}");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(refusals.pause().is_none());
    }
}
