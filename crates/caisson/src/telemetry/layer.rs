//! Converts `tracing` spans into finished OpenTelemetry spans.

use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Passes finished spans to the exporter.
pub(crate) struct SpanLayer {
    pub(super) finished: mpsc::Sender<Value>,
    pub(super) dropped: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

/// A span in progress.
struct OpenSpan {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    name: String,
    started: u128,
    attributes: Vec<Value>,
}

/// Random numbers, unique enough for ids.
fn random() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

fn now_nanos() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        // Skips intermediate spans that are not exported.
        let above = span.scope().skip(1).find_map(|above| {
            above.extensions().get::<OpenSpan>().map(|running| (running.trace, running.id))
        });
        let trace =
            above.map_or_else(|| (u128::from(random()) << 64) | u128::from(random()), |(trace, _)| trace);
        let mut running = OpenSpan {
            trace,
            id: random(),
            parent: above.map(|(_, id)| id),
            name: span.name().to_owned(),
            started: now_nanos(),
            attributes: Vec::new(),
        };
        attributes.record(&mut running);
        span.extensions_mut().insert(running);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(running) = span.extensions_mut().get_mut::<OpenSpan>()
        {
            values.record(running);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(running) = context.span(&id).and_then(|span| span.extensions_mut().remove::<OpenSpan>())
        else {
            return;
        };
        if self.finished.try_send(running.finish()).is_err() {
            self.dropped.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

impl OpenSpan {
    fn finish(self) -> Value {
        let parent = self.parent.map(|id| format!("{id:016x}")).unwrap_or_default();
        let kind = if self.name == "request" { 2 } else { 1 };
        let shown = |key: &str| {
            self.attributes.iter().find(|it| it["key"] == key).map(|it| it["value"]["stringValue"].clone())
        };
        let failed = shown("outcome").is_some_and(|outcome| outcome == "failed");
        let name = match (shown("http.request.method"), shown("http.route")) {
            (Some(Value::String(method)), Some(Value::String(route))) => format!("{method} {route}"),
            _ => self.name,
        };
        json!({
            "traceId": format!("{:032x}", self.trace),
            "spanId": format!("{:016x}", self.id),
            "parentSpanId": parent,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": self.started.to_string(),
            "endTimeUnixNano": now_nanos().to_string(),
            "attributes": self.attributes,
            "status": if failed { json!({"code": 2}) } else { json!({}) },
        })
    }

    fn add(&mut self, field: &Field, value: &Value) {
        self.attributes.push(json!({"key": field.name(), "value": value}));
    }
}

impl Visit for OpenSpan {
    fn record_u64(&mut self, field: &Field, value: u64) {
        // The JSON encoding of OTLP represents integers as strings.
        self.add(field, &json!({"intValue": value.to_string()}));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, &json!({"intValue": value.to_string()}));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, &json!({"boolValue": value}));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, &json!({"stringValue": value}));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, &json!({"stringValue": format!("{value:?}")}));
    }
}
