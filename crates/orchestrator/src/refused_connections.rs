//! Collects the refused connections of running calls. Most clients show only the status code when a `CONNECT` is
//! refused, so the result of the call contains the reasons.

use std::collections::HashMap;

use egress::{Connection, EgressEvent};

use crate::egress::EgressView;
use crate::event::{CallRef, Event, EventBody};

/// Maximum number of refusals reported per call.
const MAX_REFUSALS: usize = 5;
/// Maximum number of calls remembered. Bounds the entries of processes that keep running after their call has ended.
const MOST_CALLS: usize = 256;

/// Refused connections by call.
#[derive(Debug, Default)]
pub(crate) struct RefusedConnections {
    calls: HashMap<CallRef, Vec<Connection>>,
}

impl RefusedConnections {
    /// Adds the event if it is a refusal that the client cannot show.
    pub(crate) fn take(&mut self, event: &Event) {
        let (Some(call), EventBody::Egress(EgressEvent::Refused(connection))) = (&event.call, &event.body)
        else {
            return;
        };
        let is_shown = !["CONNECT", "SOCKS5"].contains(&connection.method.as_str());
        if is_shown || !connection.code.is_some_and(egress::ReasonCode::is_policy) {
            return;
        }
        if self.calls.len() >= MOST_CALLS && !self.calls.contains_key(call) {
            self.calls.clear();
        }
        let refusals = self.calls.entry(call.clone()).or_default();
        if refusals.len() < MAX_REFUSALS && !refusals.iter().any(|other| other.reason == connection.reason) {
            refusals.push(connection.clone());
        }
    }

    /// Describes the refusals of a call that has ended; `None` if nothing was refused.
    pub(crate) fn tell(&mut self, call: &CallRef, asked: &EgressView) -> Option<String> {
        let refused = self.calls.remove(call)?;
        let lines: Vec<String> = refused.iter().map(|connection| describe(connection, asked)).collect();
        Some(lines.join("\n"))
    }
}

fn describe(connection: &Connection, asked: &EgressView) -> String {
    let code = connection.code.map_or("", egress::ReasonCode::as_str);
    let mut text = format!("Caisson: {} ({code})", connection.reason);
    if !connection.remedy.is_empty() {
        text += &format!("; to allow it: {}", connection.remedy);
    }
    let is_about = |host: &str, port: u16| host == connection.host && port == connection.port;
    let waits = asked.requests.iter().find(|request| {
        request.egress.as_ref().is_some_and(|question| is_about(&question.host, question.port))
    });
    if let Some(request) = waits {
        text += &format!("; the request {} waits for a person", request.id);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(call: &str, method: &str, host: &str) -> Event {
        let connection = json!({"event": "refused", "id": 1, "time_ms": 1, "call": null, "method": method, "host": host,
            "port": 443, "address": null, "bytes_up": 0, "bytes_down": 0, "duration_ms": 1, "verdict": "refused",
            "code": "not_in_list", "rule": "list", "reason": format!("{host}:443 was refused"), "remedy": "write it"});
        let body = EventBody::Egress(serde_json::from_value(connection).unwrap());
        let call = Some(CallRef { id: call.into(), attempt: 1 });
        Event { sequence: 1, time_ms: 1, call, actor: None, body }
    }

    #[test]
    fn call_result_lists_each_hidden_refusal_once() {
        let mut calls = RefusedConnections::default();
        for host in ["a.example", "a.example", "b.example"] {
            calls.take(&refused("one", "CONNECT", host));
        }
        calls.take(&refused("one", "GET", "shown.example"));
        calls.take(&refused("two", "SOCKS5", "c.example"));
        let request = json!({"id": "egress-3", "kind": "egress", "call": "one", "text": "", "egress":
            {"host": "b.example", "port": 443, "rule": "b.example", "code": "not_in_list", "reason": ""}});
        let asked =
            EgressView { requests: vec![serde_json::from_value(request).unwrap()], ..EgressView::default() };
        let one = CallRef { id: "one".into(), attempt: 1 };
        assert_eq!(
            calls.tell(&one, &asked).unwrap(),
            "Caisson: a.example:443 was refused (not_in_list); to allow it: write it\n\
             Caisson: b.example:443 was refused (not_in_list); to allow it: write it; the request egress-3 waits for a person"
        );
        assert_eq!(calls.tell(&one, &asked), None);
        assert!(calls.tell(&CallRef { id: "two".into(), attempt: 1 }, &asked).is_some());
    }

    #[test]
    fn reported_refusals_are_bounded() {
        let mut calls = RefusedConnections::default();
        for number in 0..20 {
            calls.take(&refused("one", "CONNECT", &format!("h{number}.example")));
        }
        let one = CallRef { id: "one".into(), attempt: 1 };
        assert_eq!(calls.tell(&one, &EgressView::default()).unwrap().lines().count(), MAX_REFUSALS);
        for number in 0..1000 {
            calls.take(&refused(&format!("call-{number}"), "CONNECT", "a.example"));
        }
        assert!(calls.calls.len() <= MOST_CALLS);
    }
}
