//! The choice of the server's model over the API.

use model::{ChosenModel, ModelChoice, ModelError, ModelTest, NewModelChoice, Settings};

use crate::core::Orchestrator;
use crate::error::OrchestratorError;

impl Orchestrator {
    /// Stores the model that agents use from now on. Jobs that wait for a model start.
    ///
    /// # Errors
    /// The configuration names a model, the choice is invalid, or it cannot be stored.
    pub fn choose_model(&self, new: NewModelChoice) -> Result<ChosenModel, OrchestratorError> {
        let (choice, _) = self.check_choice(new)?;
        let shown = choice.shown();
        self.core.models.choose(Some(choice))?;
        let (provider, model, base_url) = (&shown.provider, &shown.model, &shown.base_url);
        let actor = self.actor().map(|actor| actor.name.as_str());
        tracing::info!(provider, model, base_url, actor, "the model was chosen over the API");
        Ok(shown)
    }

    /// Removes the choice and its key. Does nothing if there is none.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget_model_choice(&self) -> Result<(), OrchestratorError> {
        self.core.models.choose(None)
    }

    /// Tests a model with a tiny request: the one in this choice, or the one in use if the choice is empty. Stores
    /// nothing.
    ///
    /// # Errors
    /// There is a choice, and it is invalid, or the configuration names a model.
    pub async fn test_model(&self, new: NewModelChoice) -> Result<ModelTest, OrchestratorError> {
        let in_use = self.core.models.lock().settings.clone();
        let settings = if new == NewModelChoice::default() { in_use } else { self.check_choice(new)?.1 };
        Ok(model::test_model(&settings).await)
    }

    /// The checked choice, and the settings with it.
    fn check_choice(&self, new: NewModelChoice) -> Result<(ModelChoice, Settings), OrchestratorError> {
        let models = &self.core.models;
        let configured = models.configured();
        if configured.names_a_model() {
            let by = configured.named_by.map_or_else(|| "the configuration".to_owned(), |by| by.to_string());
            return Err(OrchestratorError::ModelConfigured { by });
        }
        let choice = new.check().map_err(invalid_choice)?.or_key_of(models.choice().as_ref());
        choice.check_has_key(&configured).map_err(invalid_choice)?;
        let settings = choice.apply(&configured);
        Ok((choice, settings))
    }
}

fn invalid_choice(error: ModelError) -> OrchestratorError {
    match error {
        ModelError::Settings { key, detail } => job::invalid(key, detail).into(),
        other => job::invalid("model", other.to_string()).into(),
    }
}
