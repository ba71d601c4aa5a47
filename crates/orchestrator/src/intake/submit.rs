//! Accepts jobs: checks the request, chooses the image, and appends the job to the queue.

use std::sync::atomic::Ordering;

use job::{EventBody, InvalidField, JobId, JobSpec, JobState, Work};
use store::{Created, NewRecord, digest};

use crate::core::Orchestrator;
use crate::core::RETRY_AFTER_S;
use crate::core::images::{self, ChosenImage};
use crate::egress::policy_of;
use crate::error::OrchestratorError;
use crate::intake::form_upload;
use crate::intake::submission::{Accepted, Bringing, Repeated, Submission};
use crate::scheduler::start_driver;

impl Orchestrator {
    /// Accepts a job. The job is durable when this returns.
    ///
    /// # Errors
    /// A field is invalid, the queue is full, or the store fails.
    pub async fn submit(&self, submission: Submission) -> Result<Accepted, OrchestratorError> {
        let Submission { job, idempotency_key, submitter, bringing } = submission;
        let idempotency = idempotency_key.map(|key| {
            // The same fields in another order are the same request.
            let mut fields = serde_json::to_value(&job).unwrap_or_default();
            fields.sort_all_objects();
            let mut body = fields.to_string().into_bytes();
            // The same job without files is a different request.
            if bringing == Bringing::Files {
                body.extend_from_slice(b" with files");
            }
            // Keys of different callers are independent, even if they are equal.
            let whose = submitter.as_ref().map(|submitter| format!("{}/", submitter.key)).unwrap_or_default();
            (format!("{whose}{key}"), digest(&body).to_vec())
        });
        let start = job.start;
        let asked = job.image.clone();
        let mut spec = job.check(&self.rules_for(submitter.as_ref().map(|submitter| &submitter.key)))?;
        self.check_model(spec.agent.model.as_deref())?;
        let (ChosenImage { image, hint: about_image }, away) =
            images::choose_or_assume(&self.core, asked.as_deref()).await?;
        spec.image = image;
        let away = self.check_limits(&spec).await?.or(away);
        self.check_policy(&spec)?;
        let _turn = self.check_allowance(submitter.as_ref()).await?;
        spec.submitter = submitter;
        let (state, code, reason) = match (bringing, start) {
            (Bringing::Files, _) => form_upload::first_state(),
            (Bringing::Nothing, Some(false)) => (JobState::Draft, None, None),
            (Bringing::Nothing, _) => match (self.first_state(&spec).await?, away) {
                ((JobState::Queued, None, None), Some(away)) => {
                    let reason = format!("{away}. The job waits; what it asks for is checked then");
                    (JobState::Queued, Some(away.code().to_owned()), Some(reason))
                }
                (state, _) => state,
            },
        };
        let hint = match bringing {
            Bringing::Files => about_image,
            Bringing::Nothing => reason.clone().or(about_image),
        };
        // A draft occupies a place in the queue from the start, so that the limit applies to drafts too.
        if matches!(state, JobState::Queued | JobState::Draft) {
            self.check_queue().await?;
        }
        let events = vec![EventBody::StateChanged { state, code, reason }.into()];
        let record = NewRecord { id: JobId::generate(), spec, events, idempotency };
        match self.core.store.create(record).await? {
            Created::New(view) => {
                self.count_queued();
                self.core.queue_changed.notify_one();
                Ok(Accepted { view: *view, repeated: Repeated::No, hint })
            }
            Created::Repeated(job) => {
                let view = self.core.store.job(job).await?;
                Ok(Accepted { hint: view.hint(), view, repeated: Repeated::Yes })
            }
            Created::Mismatch => Err(OrchestratorError::IdempotencyMismatch),
        }
    }

    /// Refuses limits that the backend cannot enforce. If the backend does not answer, returns its error as
    /// `Ok(Some)`; creating the sandbox checks the limits later.
    pub(crate) async fn check_limits(
        &self,
        spec: &JobSpec,
    ) -> Result<Option<OrchestratorError>, OrchestratorError> {
        let Some(admission) = self.core.backend.admission() else { return Ok(None) };
        match admission.check_limits(&spec.limits, spec.isolation).await.map_err(Into::into) {
            Ok(()) => Ok(None),
            Err(error) if OrchestratorError::is_backend_unavailable(&error) => {
                self.core.backend_watch.note(&error);
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    /// The first state of a job, with the reason if it must wait.
    pub(crate) async fn first_state(
        &self,
        spec: &JobSpec,
    ) -> Result<(JobState, Option<String>, Option<String>), OrchestratorError> {
        if !matches!(spec.work, Work::Task(_)) {
            return Ok((JobState::Queued, None, None));
        }
        match self.core.models.get(spec.agent.model.as_deref()).await {
            Ok(_) => Ok((JobState::Queued, None, None)),
            Err(model::ModelError::Settings { key, detail }) => {
                Err(InvalidField { field: key, problem: detail }.into())
            }
            Err(error) => {
                let reason = format!("{error}. The task is kept and starts when a model is available");
                Ok((JobState::Paused, Some("no_model".to_owned()), Some(reason)))
            }
        }
    }

    pub(crate) fn check_policy(&self, spec: &JobSpec) -> Result<(), InvalidField> {
        let settings = self.core.settings();
        policy_of(spec, &settings)
            .map_err(|error| InvalidField { field: "egress".into(), problem: error.to_string() })?;
        for (name, asked) in &spec.egress_settings.secrets {
            let Some(kept) = settings.secrets.get(name) else {
                let known: Vec<&str> = settings.secrets.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(InvalidField {
                    field: format!("secrets.{name}"),
                    problem: format!("this server has no secret of this name; it has: {known}"),
                });
            };
            if let Some((number, problem)) = kept.refusal(&asked.hosts) {
                return Err(InvalidField { field: format!("secrets.{name}.hosts[{number}]"), problem });
            }
        }
        Ok(())
    }

    /// Starts a driver for a job, whether or not there is room to run it.
    pub(crate) async fn start_now(&self, id: JobId) -> Result<(), OrchestratorError> {
        start_driver(&self.core, id).await
    }

    /// Counts a job that was added to the queue.
    pub(crate) fn count_queued(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// The in-memory count only grows, so the store is asked when it says that the queue may be full.
    pub(crate) async fn check_queue(&self) -> Result<(), OrchestratorError> {
        let limit = self.core.settings().max_queued;
        if self.queued.load(Ordering::Relaxed) < limit {
            return Ok(());
        }
        let queued = self.core.store.count_waiting().await?;
        self.queued.store(queued, Ordering::Relaxed);
        if queued >= limit {
            return Err(OrchestratorError::QueueFull { queued, retry_after_s: RETRY_AFTER_S });
        }
        Ok(())
    }
}
