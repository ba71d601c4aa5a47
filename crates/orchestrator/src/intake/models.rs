//! The models that jobs can use.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use job::{InvalidField, invalid};
use model::ModelStatus;

use crate::core::Orchestrator;
use crate::core::models::{KeptSurvey, SURVEY_AGE};
use crate::error::OrchestratorError;

impl Orchestrator {
    /// Adds a model with recorded answers that jobs may name; its answers are marked as recorded.
    pub fn add_recording(&self, name: &str) {
        let recordings = &self.core.models.recordings;
        recordings.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    /// If callers need keys, restricts the addresses that they may make this server connect to by naming a model
    /// there.
    pub(crate) fn check_model(&self, name: Option<&str>) -> Result<(), InvalidField> {
        let Some(name) = name.filter(|_| self.requires_authentication()) else { return Ok(()) };
        if self.core.models.lock().settings.allows(name) || self.core.models.is_recording(name) {
            return Ok(());
        }
        Err(invalid(
            "model",
            "jobs may not use this URL as model on this server: use a provider, such as \
             anthropic/claude-sonnet-5, or ask the operator to add it to `allowed_model_urls` in [model]",
        ))
    }

    /// The model that agents use, and what else can be reached. Contains no API keys.
    ///
    /// # Errors
    /// The settings name something that cannot be a model.
    pub async fn models(&self) -> Result<Arc<ModelStatus>, OrchestratorError> {
        let models = &self.core.models;
        let mut kept = models.survey.lock().await;
        let changes = *models.changes().borrow();
        if let Some(kept) = &*kept
            && kept.time.elapsed() < SURVEY_AGE
            && kept.changes == changes
        {
            return Ok(Arc::clone(&kept.survey));
        }
        let settings = models.lock().settings.clone();
        let mut survey = model::check_models(&settings)
            .await
            .map_err(|error| OrchestratorError::Agent { why: error.to_string() })?;
        survey.choice = models.choice().map(|choice| choice.shown());
        let survey = Arc::new(survey);
        *kept = Some(KeptSurvey { time: Instant::now(), changes, survey: Arc::clone(&survey) });
        Ok(survey)
    }
}
