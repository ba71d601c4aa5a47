//! Sends finished spans to a collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::SpanLayer;
use crate::tls::install_tls_provider;

/// The maximum number of queued spans.
const MAX_QUEUED: usize = 4096;
const MAX_BATCH: usize = 512;
/// How long to collect spans into a batch.
const BATCH_DELAY: Duration = Duration::from_secs(2);
/// Timeout for a request to the collector.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where to send traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Telemetry {
    /// The collector, such as `http://127.0.0.1:4318`.
    pub(crate) endpoint: String,
    /// This server's service name.
    pub(crate) service_name: String,
}

impl Telemetry {
    /// Checks the configuration.
    pub(crate) fn check(endpoint: Option<String>, service_name: Option<String>) -> Result<Option<Self>> {
        let Some(endpoint) = endpoint else {
            if service_name.is_some() {
                bail!("telemetry.service_name: has no effect without telemetry.otlp_endpoint");
            }
            return Ok(None);
        };
        let is_url =
            reqwest::Url::parse(&endpoint).is_ok_and(|url| ["http", "https"].contains(&url.scheme()));
        if !is_url {
            bail!(
                "telemetry.otlp_endpoint: `{endpoint}` is not the URL of a collector, such as http://127.0.0.1:4318"
            );
        }
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Ok(Some(Self { endpoint, service_name: service_name.unwrap_or_else(|| "caisson".into()) }))
    }
}

/// Sends spans; must be run as long as the server lives.
pub(crate) struct Exporter {
    telemetry: Telemetry,
    spans: mpsc::Receiver<Value>,
    dropped: Arc<AtomicU64>,
}

/// A layer for the log's registry, and the exporter of its spans.
pub(crate) fn start(telemetry: Telemetry) -> (SpanLayer, Exporter) {
    let (finished, spans) = mpsc::channel(MAX_QUEUED);
    let dropped = Arc::new(AtomicU64::new(0));
    (SpanLayer { finished, dropped: Arc::clone(&dropped) }, Exporter { telemetry, spans, dropped })
}

impl Exporter {
    /// Sends spans until no more can be created.
    pub(crate) async fn run(mut self) -> Result<()> {
        install_tls_provider();
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .build()
            .context("preparing the client of the collector")?;
        let url = format!("{}/v1/traces", self.telemetry.endpoint);
        let mut is_away = false;
        loop {
            let mut batch = Vec::new();
            if self.spans.recv_many(&mut batch, MAX_BATCH).await == 0 {
                return Ok(());
            }
            let more = async {
                while batch.len() < MAX_BATCH && self.spans.recv_many(&mut batch, MAX_BATCH).await > 0 {}
            };
            let _ = tokio::time::timeout(BATCH_DELAY, more).await;
            let answer = client.post(&url).json(&document(&self.telemetry, &batch)).send().await;
            let problem = match answer {
                Ok(answer) if answer.status().is_success() => None,
                Ok(answer) => Some(format!("it answered {}", answer.status())),
                Err(error) => Some(error.to_string()),
            };
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            // Logged once, not for every batch.
            if let Some(problem) = problem.filter(|_| !is_away) {
                is_away = true;
                tracing::warn!(%url, problem, "cannot send traces; dropping them until the collector is reachable");
            } else if dropped > 0 {
                tracing::warn!(dropped, "dropped spans: the collector is too slow");
            } else {
                is_away = false;
            }
        }
    }
}

fn document(telemetry: &Telemetry, spans: &[Value]) -> Value {
    let attribute = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    json!({"resourceSpans": [{
        "resource": {"attributes": [
            attribute("service.name", &telemetry.service_name),
            attribute("service.version", env!("CARGO_PKG_VERSION")),
        ]},
        "scopeSpans": [{"scope": {"name": "caisson"}, "spans": spans}],
    }]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_named_by_a_url_or_refused() {
        let check = |endpoint: &str| Telemetry::check(Some(endpoint.into()), None);
        assert_eq!(check("http://127.0.0.1:4318/").unwrap().unwrap().endpoint, "http://127.0.0.1:4318");
        assert!(check("127.0.0.1:4318").unwrap_err().to_string().contains("telemetry.otlp_endpoint"));
        assert!(Telemetry::check(None, Some("x".into())).is_err());
        assert_eq!(Telemetry::check(None, None).unwrap(), None);
    }
}
