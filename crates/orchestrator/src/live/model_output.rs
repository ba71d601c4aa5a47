//! The output of a model while it answers.

use job::JobId;
use tokio::sync::watch;

use crate::core::Orchestrator;
use crate::core::live_tokens::Snapshot;

impl Orchestrator {
    /// Subscribes to the model output of a job; `None` if the job has no driver.
    #[must_use]
    pub fn listen(&self, job: JobId) -> Option<watch::Receiver<Snapshot>> {
        self.core.live.get(job).map(|live| live.speech.listen())
    }
}
