//! Collects the refused connections of running calls. Most clients show only the status code when a `CONNECT` is
//! refused, so the result of the call contains the reasons.

use std::collections::{HashMap, VecDeque};

use egress::{Connection, EgressEvent, ReasonCode};
use job::{CallRef, EgressView, Event, EventBody, Sequence, step_tool};

/// Maximum number of refusals reported per call.
const MAX_REFUSALS: usize = 5;
/// Maximum number of calls and kernels remembered. Bounds the entries of processes that keep running after their call
/// has ended.
const MAX_ORIGINS: usize = 256;

/// What a connection came from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Call(CallRef),
    /// A live kernel, whose process outlives its cells.
    Kernel(String),
}

impl Origin {
    /// The guest starts kernels with the proxy user `kernel-NAME.1`.
    fn of(event: &Event, connection: &Connection) -> Option<Self> {
        if let Some(call) = &event.call {
            return Some(Self::Call(call.clone()));
        }
        let user = connection.call.as_deref()?;
        let kernel = user.strip_prefix("kernel-")?.strip_suffix(".1")?;
        Some(Self::Kernel(kernel.to_owned()))
    }
}

/// Refused connections by origin.
#[derive(Debug, Default)]
pub(crate) struct RefusedConnections {
    /// The oldest origin first.
    origins: VecDeque<(Origin, Vec<(Sequence, Connection)>)>,
    /// When the running cells were started. A cell from before a server restart is not in it.
    cells: HashMap<CallRef, Sequence>,
}

impl RefusedConnections {
    /// Adds the event if it is a refusal that the client cannot show.
    pub(crate) fn take(&mut self, event: &Event) {
        match (&event.body, &event.call) {
            (EventBody::Egress(EgressEvent::Refused(connection)), _) => self.take_refusal(event, connection),
            (EventBody::CallStarted { tool, .. }, Some(call))
                if step_tool(tool).is_some_and(|tool| tool.is_cell) =>
            {
                self.cells.insert(call.clone(), event.sequence);
            }
            (EventBody::CallEnded(_), Some(call)) => drop(self.cells.remove(call)),
            _ => {}
        }
    }

    fn take_refusal(&mut self, event: &Event, connection: &Connection) {
        let Some(origin) = Origin::of(event, connection) else { return };
        // A kernel has many clients, and programs in cells seldom print the body of a response.
        let is_shown =
            matches!(origin, Origin::Call(_)) && !["CONNECT", "SOCKS5"].contains(&connection.method.as_str());
        let is_explained =
            connection.code.is_some_and(|code| code.is_policy() || code == ReasonCode::ResolveFailed);
        if is_shown || !is_explained {
            return;
        }
        let known = self.origins.iter().position(|(other, _)| *other == origin);
        let index = known.unwrap_or_else(|| {
            if self.origins.len() >= MAX_ORIGINS {
                self.origins.pop_front();
            }
            self.origins.push_back((origin, Vec::new()));
            self.origins.len() - 1
        });
        let Some((_, refusals)) = self.origins.get_mut(index) else { return };
        // The newest ones, because a kernel has others from before the cell.
        refusals.retain(|(_, other)| other.reason != connection.reason);
        if refusals.len() >= MAX_REFUSALS {
            refusals.remove(0);
        }
        refusals.push((event.sequence, connection.clone()));
    }

    /// Describes the refusals of a call that has ended, and of the kernel that ran it since the call's start; `None` if
    /// nothing was refused.
    pub(crate) fn tell(
        &mut self,
        call: &CallRef,
        kernel: Option<&str>,
        asked: &EgressView,
    ) -> Option<String> {
        let since = self.cells.get(call).copied().unwrap_or_default();
        let mut refused = self.remove(&Origin::Call(call.clone()));
        if let Some(kernel) = kernel {
            let of_kernel = self.remove(&Origin::Kernel(kernel.to_owned()));
            refused.extend(of_kernel.into_iter().filter(|(sequence, _)| *sequence > since));
        }
        let lines: Vec<String> = refused.iter().map(|(_, connection)| describe(connection, asked)).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    fn remove(&mut self, origin: &Origin) -> Vec<(Sequence, Connection)> {
        let known = self.origins.iter().position(|(other, _)| other == origin);
        known.and_then(|index| self.origins.remove(index)).map(|(_, refusals)| refusals).unwrap_or_default()
    }
}

fn describe(connection: &Connection, asked: &EgressView) -> String {
    let code = connection.code.map_or("", ReasonCode::as_str);
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
            "code": "not_in_list", "rule": "list", "reason": format!("{host}:443 refused"), "remedy": "write it"});
        let body = EventBody::Egress(serde_json::from_value(connection).unwrap());
        let call = Some(CallRef { id: call.into(), attempt: 1 });
        Event { sequence: 1, time_ms: 1, call, actor: None, body }
    }

    /// A refused connection of a kernel, by the name of its proxy user.
    fn of_kernel(sequence: u64, user: &str, host: &str) -> Event {
        let mut event = refused("", "GET", host);
        (event.sequence, event.call) = (sequence, None);
        if let EventBody::Egress(EgressEvent::Refused(connection)) = &mut event.body {
            connection.call = Some(user.into());
        }
        event
    }

    fn call(id: &str) -> CallRef {
        CallRef { id: id.into(), attempt: 1 }
    }

    #[test]
    fn call_result_lists_each_hidden_refusal_once() {
        let mut calls = RefusedConnections::default();
        for host in ["a.example", "b.example", "b.example"] {
            calls.take(&refused("one", "CONNECT", host));
        }
        calls.take(&refused("one", "GET", "shown.example"));
        calls.take(&refused("two", "SOCKS5", "c.example"));
        let request = json!({"id": "egress-3", "kind": "egress", "call": "one", "text": "", "egress":
            {"host": "b.example", "port": 443, "rule": "b.example", "code": "not_in_list", "reason": ""}});
        let asked =
            EgressView { requests: vec![serde_json::from_value(request).unwrap()], ..EgressView::default() };
        assert_eq!(
            calls.tell(&call("one"), None, &asked).unwrap(),
            "Caisson: a.example:443 refused (not_in_list); to allow it: write it\n\
             Caisson: b.example:443 refused (not_in_list); to allow it: write it; the request egress-3 waits for a person"
        );
        assert_eq!(calls.tell(&call("one"), None, &asked), None);
        assert!(calls.tell(&call("two"), None, &asked).is_some());
    }

    #[test]
    fn only_refusals_and_unresolved_names_are_explained() {
        let mut calls = RefusedConnections::default();
        for (host, code) in [("slow.example", "timeout"), ("gone.example", "resolve_failed")] {
            let mut event = refused("one", "CONNECT", host);
            if let EventBody::Egress(EgressEvent::Refused(connection)) = &mut event.body {
                connection.code = Some(serde_json::from_value(json!(code)).unwrap());
            }
            calls.take(&event);
        }
        let told = calls.tell(&call("one"), None, &EgressView::default()).unwrap();
        assert!(told.contains("(resolve_failed)") && told.lines().count() == 1, "{told}");
    }

    #[test]
    fn cell_lists_refusals_of_its_kernel_since_its_start() {
        let mut calls = RefusedConnections::default();
        calls.take(&of_kernel(1, "kernel-python3.1", "early.example"));
        let input = json!({"code": "x"});
        let started = EventBody::CallStarted { step: None, tool: "python".into(), input };
        calls.take(&Event { sequence: 2, time_ms: 1, call: Some(call("cell")), actor: None, body: started });
        calls.take(&of_kernel(3, "kernel-python3.1", "a.example"));
        calls.take(&of_kernel(4, "kernel-deno.1", "b.example"));
        calls.take(&of_kernel(5, "elsewhere.1", "c.example"));
        let asked = EgressView::default();
        let told = calls.tell(&call("cell"), Some("python3"), &asked).unwrap();
        assert!(told.starts_with("Caisson: a.example:443 refused") && told.lines().count() == 1, "{told}");
        assert_eq!(calls.tell(&call("cell"), Some("python3"), &asked), None);
        // The start of this cell was logged before the server was restarted.
        assert!(calls.tell(&call("resumed"), Some("deno"), &asked).unwrap().contains("b.example"));
    }

    #[test]
    fn reported_refusals_are_bounded_and_the_oldest_are_dropped() {
        let mut calls = RefusedConnections::default();
        let asked = EgressView::default();
        for number in 0..20 {
            calls.take(&refused("one", "CONNECT", &format!("h{number}.example")));
        }
        assert_eq!(calls.tell(&call("one"), None, &asked).unwrap().lines().count(), MAX_REFUSALS);
        for number in 0..1000 {
            calls.take(&refused(&format!("call-{number}"), "CONNECT", "a.example"));
        }
        assert_eq!(calls.origins.len(), MAX_ORIGINS);
        assert!(calls.tell(&call("call-999"), None, &asked).is_some());
        assert!(calls.tell(&call("call-744"), None, &asked).is_some(), "the oldest that is kept");
        assert_eq!(calls.tell(&call("call-743"), None, &asked), None);
    }
}
