//! Lets jobs that wait for a model continue once it is available.
//!
//! A check takes as long as the timeout of a server that does not respond, so checks run in the background: each
//! model once, however many jobs name it, and all of them concurrently. A job that names an unresponsive server
//! delays no other job.

use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt;
use job::{JobId, JobState};

use crate::core::Core;
use crate::error::OrchestratorError;
use crate::scheduler::start_driver;

/// Maximum number of concurrent checks.
const AT_ONCE: usize = 32;

/// Starts a check in the background, unless one is running.
pub(crate) fn look(core: &Arc<Core>) {
    let core = Arc::clone(core);
    let tasks = core.tasks.clone();
    tasks.spawn(async move {
        let Ok(_turn) = core.models.watching.try_lock() else { return };
        let mut settings = core.models.changes();
        loop {
            settings.mark_unchanged();
            tokio::select! {
                () = core.shutdown.cancelled() => return,
                looked = look_for_all(&core) => if let Err(error) = looked {
                    tracing::warn!(error = &error as &dyn std::error::Error, "looking for models failed, trying again");
                },
            }
            // Settings that changed in the meantime were not seen by all of these checks.
            if !settings.has_changed().unwrap_or(false) {
                return;
            }
        }
    });
}

async fn look_for_all(core: &Arc<Core>) -> Result<(), OrchestratorError> {
    let mut waiting: HashMap<Option<String>, Vec<JobId>> = HashMap::new();
    for job in core.store.jobs_with_code(JobState::Paused, "no_model").await? {
        let spec = core.store.spec(job).await?;
        waiting.entry(spec.agent.model).or_default().push(job);
    }
    let mut looks =
        futures::stream::iter(waiting).map(|(model, jobs)| wake(core, model, jobs)).buffer_unordered(AT_ONCE);
    while let Some(looked) = looks.next().await {
        looked?;
    }
    Ok(())
}

/// Starts drivers for these jobs if their model is available.
async fn wake(core: &Arc<Core>, model: Option<String>, jobs: Vec<JobId>) -> Result<(), OrchestratorError> {
    if core.models.get(model.as_deref()).await.is_err() {
        return Ok(());
    }
    for job in jobs {
        start_driver(core, job).await?;
    }
    core.model_found.notify_waiters();
    Ok(())
}
