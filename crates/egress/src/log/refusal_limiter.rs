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

/// What refusals of the same kind have in common.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
struct Kind {
    host: String,
    port: u16,
    code: Option<ReasonCode>,
    /// Only for names that do not resolve.
    call: Option<String>,
}

impl Kind {
    fn of(connection: &Connection) -> Self {
        let (host, code) = (connection.host.clone(), connection.code);
        match code {
            // No port of the host works. Report that once to each call that needs it.
            Some(ReasonCode::ResolveFailed) => Self { host, port: 0, code, call: connection.call.clone() },
            _ => Self { host, port: connection.port, code, call: None },
        }
    }

    /// How many refusals of this kind are logged individually.
    fn logged_individually(&self) -> u32 {
        if self.code == Some(ReasonCode::ResolveFailed) { 1 } else { LOGGED_PER_KIND }
    }
}

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
        let kind = Kind::of(&connection);
        let is_known = state.kinds.contains_key(&kind) || state.kinds.len() < MAX_KINDS;
        let kind = if is_known && state.all < MAX_LOGGED { kind } else { Kind::default() };
        let (now, individually) = (Instant::now(), kind.logged_individually());
        let of_kind = state.kinds.entry(kind).or_insert_with(|| KindState {
            logged: 0,
            at: now,
            held: 0,
            newest: None,
        });
        if of_kind.logged >= individually && now.duration_since(of_kind.at) < LOG_INTERVAL {
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
    async fn unresolved_name_is_logged_once_per_call_and_then_counted() {
        let refusals = RefusalLimiter::new();
        let unresolved = |id: u64, call: &str| {
            let (code, call) = (Some(ReasonCode::ResolveFailed), Some(call.to_owned()));
            // Another port of a name that does not resolve is no news.
            Connection { code, call, port: u16::try_from(id).unwrap(), ..refused(id, "gone.example") }
        };
        let logged: Vec<u64> =
            (0..17).filter_map(|id| refusals.count_refusal(unresolved(id, "a.1"))).map(|c| c.id).collect();
        assert_eq!(logged, [0]);
        assert!(refusals.count_refusal(unresolved(17, "b.1")).is_some(), "the next call");
        assert_eq!(refusals.held().iter().map(|held| 1 + held.repeated).sum::<u64>(), 16);
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
