//! Renders the metrics of the server.

use crate::core::Orchestrator;
use crate::error::OrchestratorError;
use crate::metrics::Metrics;
use crate::metrics::STATES;
use crate::metrics::name_of;

impl Orchestrator {
    /// The metrics, for other crates that count something.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.core.metrics
    }

    /// All metrics in the OpenMetrics text format.
    pub async fn render_metrics(&self) -> Result<String, OrchestratorError> {
        let metrics = &self.core.metrics;
        let counts = self.core.store.count_by_state().await?;
        for state in STATES {
            let count = counts.iter().find(|(known, _)| *known == state).map_or(0, |(_, count)| *count);
            let gauge = metrics.jobs.get_or_create_owned(&[("state", name_of(state))]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        metrics.jobs_driven.set(i64::try_from(self.core.live.count_jobs()).unwrap_or(i64::MAX));
        metrics.sandboxes.set(i64::try_from(self.core.live.count_sandboxes()).unwrap_or(i64::MAX));
        metrics.look_at_process();
        Ok(metrics.render())
    }
}
