//! The models that jobs may use; each is connected to on first use and then cached. The server's own model is the
//! configured one, or else the one that an admin chose.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::{Model, ModelChoice, ModelError, ModelStatus};
use tokio::sync::watch;

use crate::core::model_choice_file::ModelChoiceFile;
use crate::error::OrchestratorError;

/// How long the survey of available models is cached.
pub(crate) const SURVEY_AGE: Duration = Duration::from_secs(10);

pub(crate) struct Models {
    kept: Mutex<Kept>,
    /// Names of models with recorded answers, which this server replays.
    pub(crate) recordings: Mutex<BTreeSet<String>>,
    /// Locked during a survey, so that concurrent callers share one.
    pub(crate) survey: tokio::sync::Mutex<Option<KeptSurvey>>,
    /// Locked while the models that jobs wait for are checked.
    pub(crate) watching: tokio::sync::Mutex<()>,
    /// Number of settings changes.
    changes: watch::Sender<u64>,
    /// Locked while a choice is stored, so that file and memory agree.
    choice_file: Mutex<ModelChoiceFile>,
}

pub(crate) struct Kept {
    /// The settings in effect: those of the configuration, with the chosen model if the configuration names none.
    pub(crate) settings: model::Settings,
    configured: model::Settings,
    choice: Option<ModelChoice>,
    connected: HashMap<Option<String>, Arc<dyn Model>>,
}

/// A survey, and when and after how many settings changes it was made.
pub(crate) struct KeptSurvey {
    pub(crate) time: Instant,
    pub(crate) changes: u64,
    pub(crate) survey: Arc<ModelStatus>,
}

impl Models {
    /// Reads the stored choice, if there is one.
    pub(crate) fn open(
        configured: model::Settings,
        choice_file: ModelChoiceFile,
    ) -> Result<Self, OrchestratorError> {
        let choice = choice_file.read()?;
        let settings = settings_in_effect(&configured, choice.as_ref());
        let kept = Kept { settings, configured, choice, connected: HashMap::new() };
        Ok(Self {
            kept: Mutex::new(kept),
            recordings: Mutex::default(),
            survey: tokio::sync::Mutex::default(),
            watching: tokio::sync::Mutex::default(),
            changes: watch::Sender::default(),
            choice_file: Mutex::new(choice_file),
        })
    }

    /// Applies a new configuration. Running jobs keep their model.
    pub(crate) fn change(&self, configured: &model::Settings) {
        self.update(|kept| kept.configured.clone_from(configured));
    }

    /// Stores and applies another choice, or removes it. Running jobs keep their model.
    pub(crate) fn choose(&self, choice: Option<ModelChoice>) -> Result<(), OrchestratorError> {
        let file = self.choice_file.lock().unwrap_or_else(PoisonError::into_inner);
        match &choice {
            Some(choice) => file.write(choice)?,
            None => file.remove()?,
        }
        self.update(|kept| kept.choice = choice);
        Ok(())
    }

    fn update(&self, change: impl FnOnce(&mut Kept)) {
        let mut kept = self.lock();
        change(&mut kept);
        let settings = settings_in_effect(&kept.configured, kept.choice.as_ref());
        if kept.settings != settings {
            kept.settings = settings;
            kept.connected.clear();
            drop(kept);
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// What an admin chose, whether it is in effect or not.
    pub(crate) fn choice(&self) -> Option<ModelChoice> {
        self.lock().choice.clone()
    }

    pub(crate) fn configured(&self) -> model::Settings {
        self.lock().configured.clone()
    }

    /// Counts settings changes; wakes receivers on each one.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The model with this name; the server's own model if `name` is `None`.
    pub(crate) async fn get(&self, name: Option<&str>) -> Result<Arc<dyn Model>, ModelError> {
        if let Some(model) = self.kept(name) {
            return Ok(model);
        }
        let settings = self.lock().settings.clone();
        let mut wanted = settings_for(name, &settings);
        wanted.is_recorded |= name.is_some_and(|name| self.is_recording(name));
        let model = model::connect(&wanted).await?;
        let mut kept = self.lock();
        if kept.settings == settings {
            kept.connected.insert(name.map(ToOwned::to_owned), Arc::clone(&model));
        }
        Ok(model)
    }

    /// Removes a model that cannot be reached from the cache. The next user connects again, possibly to a local
    /// server at another address.
    pub(crate) fn forget(&self, name: Option<&str>, gone: &Arc<dyn Model>) {
        let mut kept = self.lock();
        let name = name.map(ToOwned::to_owned);
        if kept.connected.get(&name).is_some_and(|model| Arc::ptr_eq(model, gone)) {
            kept.connected.remove(&name);
        }
    }

    pub(crate) fn is_recording(&self, name: &str) -> bool {
        self.recordings.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Whether the model is connected.
    pub(crate) fn is_available(&self, name: Option<&str>) -> bool {
        self.kept(name).is_some()
    }

    fn kept(&self, name: Option<&str>) -> Option<Arc<dyn Model>> {
        self.lock().connected.get(&name.map(ToOwned::to_owned)).cloned()
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The configuration has priority over a choice.
fn settings_in_effect(configured: &model::Settings, choice: Option<&ModelChoice>) -> model::Settings {
    match choice.filter(|_| !configured.names_a_model()) {
        Some(choice) => choice.apply(configured),
        None => configured.clone(),
    }
}

/// The settings for the model with this name, or for the server's own model.
fn settings_for(name: Option<&str>, settings: &model::Settings) -> model::Settings {
    match name {
        // The address and key of the server's own model apply to that model only.
        Some(name) if settings.name.as_deref() != Some(name) => model::Settings {
            name: Some(name.to_owned()),
            base_url: None,
            key: None,
            fallback: Vec::new(),
            ..settings.clone()
        },
        _ => settings.clone(),
    }
}
