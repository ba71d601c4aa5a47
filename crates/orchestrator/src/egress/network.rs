//! Network report of a job: connections, totals, downloads, and the narrowest policy that would have been enough.

use std::collections::BTreeMap;

use egress::{Connection, EgressEvent, Fetch, LearnedPolicy, Mode, Used, Verdict};
use job::{EgressSchema, Event, EventBody, JobId, Kinds};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::core::Orchestrator;
use crate::error::OrchestratorError;

/// Maximum number of connections in one response; `audit/network.jsonl` contains all of them.
const MAX_LISTED: usize = 1000;

/// What a job has reached, or tried to.
#[derive(Debug, Serialize, ToSchema)]
pub struct NetworkReport {
    /// The policy of the job, as it was requested.
    #[schema(value_type = EgressSchema)]
    pub policy: Mode,
    /// Rules that people have added while it ran.
    pub approved: Vec<String>,
    /// What no job of this server may exceed; of a job that runs, what held when it was started.
    #[schema(value_type = Option<EgressSchema>)]
    pub ceiling: Option<Mode>,
    /// What the job may use in all; what is absent is not limited.
    #[schema(value_type = Object)]
    pub allowance: egress::Allowance,
    /// The narrowest policy that allows all that was reached.
    #[schema(value_type = EgressSchema)]
    pub learned: Mode,
    /// Sums.
    pub totals: NetworkTotals,
    /// The newest connections, oldest first, each in its last logged state.
    #[schema(value_type = Vec<Object>)]
    pub connections: Vec<Value>,
    /// Answers that the proxy could read, with their digests.
    pub downloads: Vec<Download>,
}

/// Sums over all connections of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct NetworkTotals {
    /// Connections that were made.
    pub allowed: u64,
    /// Connections that the policy refused.
    pub refused: u64,
    /// Connections that could not be made.
    pub failed: u64,
    /// Open connections.
    pub open: u64,
    /// Bytes sent.
    pub bytes_up: u64,
    /// Bytes received.
    pub bytes_down: u64,
}

/// An answer that passed the proxy readably.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Download {
    /// When it ended, in milliseconds since 1970.
    pub time_ms: u64,
    /// The call that asked, where it is known.
    pub call: Option<String>,
    /// The method of the request.
    pub method: String,
    /// Where it came from, without user and query.
    pub url: String,
    /// The status of the answer.
    pub status: u16,
    /// Bytes of the body.
    pub bytes: u64,
    /// SHA-256 of the body; absent where it broke off.
    pub sha256: Option<String>,
    /// The secrets whose values were put into the request, by name.
    pub secrets: Vec<String>,
}

impl From<&Fetch> for Download {
    fn from(fetch: &Fetch) -> Self {
        Self {
            time_ms: fetch.time_ms,
            call: fetch.call.clone(),
            method: fetch.method.clone(),
            url: fetch.url.clone(),
            status: fetch.status,
            bytes: fetch.bytes,
            sha256: fetch.sha256.clone(),
            secrets: fetch.secrets.clone(),
        }
    }
}

/// Connections of earlier drivers, according to the log.
#[derive(Default)]
pub(super) struct EarlierConnections {
    /// End events for connections that were open when the server stopped, and whose end is not logged.
    pub(super) unfinished: Vec<EgressEvent>,
    pub(super) used: Used,
    pub(super) next_id: u64,
}

/// Extracts the connections from a log.
pub(super) fn earlier_connections(log: &[Event]) -> EarlierConnections {
    let mut past = EarlierConnections { next_id: 1, ..EarlierConnections::default() };
    let mut open: BTreeMap<u64, Connection> = BTreeMap::new();
    for event in connections_in(log) {
        let Some(connection) = event.connection() else { continue };
        past.next_id = past.next_id.max(connection.id + 1);
        match event {
            EgressEvent::Opened(_) => {
                past.used.connections += 1;
                open.insert(connection.id, connection.clone());
            }
            EgressEvent::Closed(_) => {
                past.used.bytes += connection.bytes_up + connection.bytes_down;
                open.remove(&connection.id);
            }
            EgressEvent::Refused(_) | EgressEvent::Fetched(_) => {}
        }
    }
    past.unfinished = open
        .into_values()
        .map(|mut connection| {
            connection.reason = "ended with the server".into();
            EgressEvent::Closed(connection)
        })
        .collect();
    past
}

pub(super) fn connections_in(log: &[Event]) -> impl Iterator<Item = &EgressEvent> {
    log.iter().filter_map(|event| match &event.body {
        EventBody::Egress(event) => Some(event),
        _ => None,
    })
}

/// Where the files of a job come from, for the zip.
#[derive(Debug, Default)]
pub(crate) struct Provenance {
    /// Downloads that the proxy could inspect.
    pub(crate) downloads: Vec<Download>,
    /// The narrowest sufficient policy, if the job runs in learn mode.
    pub(crate) learned: Option<Mode>,
}

pub(crate) fn provenance(log: &[Event], mode: &Mode) -> Provenance {
    let downloads = connections_in(log).filter_map(download).collect();
    Provenance { downloads, learned: (*mode == Mode::Learn).then(|| learn(log)) }
}

fn download(event: &EgressEvent) -> Option<Download> {
    match event {
        // A protocol switch (status 101) has no body.
        EgressEvent::Fetched(fetch) if fetch.status != 101 => Some(fetch.into()),
        _ => None,
    }
}

fn learn(log: &[Event]) -> Mode {
    let mut lesson = LearnedPolicy::default();
    connections_in(log).for_each(|event| lesson.learn(event));
    lesson.policy()
}

impl Orchestrator {
    /// Returns what a job has connected to, or tried to.
    pub async fn network(&self, id: JobId) -> Result<NetworkReport, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        let spec = self.core.store.spec(id).await?;
        let approved =
            view.egress.answered.iter().filter(|answered| answered.standing == job::RuleStatus::Rest);
        // Page by page: a log is long, and little of it concerns connections.
        let mut summary = Summary::default();
        let mut take = |events: Vec<Event>| connections_in(&events).for_each(|event| summary.take(event));
        self.core.store.each_page(id, Kinds::All, 0, &mut take).await?;
        let (totals, connections) = summary.list();
        let live = self.core.live.get(id).and_then(|live| live.ceiling.get().cloned());
        Ok(NetworkReport {
            approved: approved.map(|answered| answered.rule.clone()).collect(),
            policy: spec.egress,
            ceiling: live.unwrap_or_else(|| self.core.settings().egress_ceiling.clone()),
            allowance: spec.egress_settings.allowance,
            learned: summary.lesson.policy(),
            totals,
            connections,
            downloads: summary.downloads,
        })
    }
}

/// Accumulates the network report while the log is read.
#[derive(Default)]
struct Summary {
    /// Sums over connections that have ended, and refusals.
    totals: NetworkTotals,
    /// Open connections, by id.
    open: BTreeMap<u64, EgressEvent>,
    /// The newest connections that have ended.
    ended: BTreeMap<u64, EgressEvent>,
    downloads: Vec<Download>,
    lesson: LearnedPolicy,
}

impl Summary {
    fn take(&mut self, event: &EgressEvent) {
        self.lesson.learn(event);
        self.downloads.extend(download(event));
        let Some(connection) = event.connection() else { return };
        match (event, connection.verdict) {
            (EgressEvent::Opened(_), _) => {
                self.open.insert(connection.id, event.clone());
                return;
            }
            (EgressEvent::Refused(_), Verdict::Refused) => self.totals.refused += 1 + connection.repeated,
            (EgressEvent::Refused(_), _) => self.totals.failed += 1 + connection.repeated,
            _ => self.totals.allowed += 1,
        }
        self.totals.bytes_up += connection.bytes_up;
        self.totals.bytes_down += connection.bytes_down;
        self.open.remove(&connection.id);
        self.ended.insert(connection.id, event.clone());
        if self.ended.len() > MAX_LISTED {
            self.ended.pop_first();
        }
    }

    /// The totals, and the newest connections.
    fn list(&self) -> (NetworkTotals, Vec<Value>) {
        let mut totals = self.totals.clone();
        totals.open = self.open.len() as u64;
        totals.allowed += totals.open;
        let all: BTreeMap<u64, &EgressEvent> =
            self.ended.iter().chain(&self.open).map(|(id, event)| (*id, event)).collect();
        let skipped = all.len().saturating_sub(MAX_LISTED);
        let listed = all.values().skip(skipped).filter_map(|event| serde_json::to_value(event).ok());
        (totals, listed.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(sequence: u64, event: EgressEvent) -> Event {
        Event { sequence, time_ms: 0, call: None, actor: None, body: EventBody::Egress(event) }
    }

    fn connection(id: u64, bytes: u64) -> Connection {
        let text = format!(
            r#"{{"id":{id},"time_ms":1,"call":null,"method":"CONNECT","host":"example.org","port":443,"address":null,
               "bytes_up":{bytes},"bytes_down":{bytes},"duration_ms":1,"verdict":"allowed","code":null,"rule":"","reason":""}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn earlier_usage_counts_and_open_connections_are_closed() {
        let log = [
            event(1, EgressEvent::Opened(connection(1, 0))),
            event(2, EgressEvent::Opened(connection(2, 0))),
            event(3, EgressEvent::Closed(connection(1, 5))),
        ];
        let past = earlier_connections(&log);
        assert_eq!((past.next_id, past.used), (3, Used { bytes: 10, connections: 2 }));
        assert!(matches!(past.unfinished.as_slice(), [EgressEvent::Closed(closed)] if closed.id == 2));
        let mut summary = Summary::default();
        connections_in(&log).for_each(|event| summary.take(event));
        let (totals, listed) = summary.list();
        assert_eq!((totals.allowed, totals.open, totals.bytes_up, listed.len()), (2, 1, 5, 2));
    }
}
