//! The models that jobs may use; each is connected to on first use and then cached.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::{Model, ModelError, Survey};
use tokio::sync::watch;

use crate::error::OrchestratorError;
use crate::orchestrator::Orchestrator;
use crate::request::{InvalidField, invalid};

/// How long the survey of available models is cached.
const SURVEY_AGE: Duration = Duration::from_secs(10);

pub(crate) struct Models {
    kept: Mutex<Kept>,
    /// Names of models with recorded answers, which this server replays.
    recordings: Mutex<BTreeSet<String>>,
    /// Locked during a survey, so that concurrent callers share one.
    survey: tokio::sync::Mutex<Option<(Instant, Arc<Survey>)>>,
    /// Locked while the models that jobs wait for are checked.
    pub(crate) watching: tokio::sync::Mutex<()>,
    /// Number of settings changes.
    changes: watch::Sender<u64>,
}

struct Kept {
    settings: model::Settings,
    connected: HashMap<Option<String>, Arc<dyn Model>>,
}

impl Models {
    pub(crate) fn new(settings: model::Settings) -> Self {
        let kept = Kept { settings, connected: HashMap::new() };
        let recordings = Mutex::default();
        Self {
            kept: Mutex::new(kept),
            recordings,
            survey: tokio::sync::Mutex::default(),
            watching: tokio::sync::Mutex::default(),
            changes: watch::Sender::default(),
        }
    }

    /// Applies new settings. Running jobs keep their model.
    pub(crate) fn change(&self, settings: &model::Settings) {
        let mut kept = self.lock();
        if kept.settings != *settings {
            *kept = Kept { settings: settings.clone(), connected: HashMap::new() };
            drop(kept);
            self.changes.send_modify(|count| *count += 1);
        }
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

    fn is_recording(&self, name: &str) -> bool {
        self.recordings.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Whether the model is connected.
    pub(crate) fn is_available(&self, name: Option<&str>) -> bool {
        self.kept(name).is_some()
    }

    fn kept(&self, name: Option<&str>) -> Option<Arc<dyn Model>> {
        self.lock().connected.get(&name.map(ToOwned::to_owned)).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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
        if self.core.settings().model.allows(name) || self.core.models.is_recording(name) {
            return Ok(());
        }
        Err(invalid(
            "model",
            "this address is not one that jobs may name on this server: name a provider, such as \
             anthropic/claude-sonnet-5, or ask the operator to add it to `allowed_model_urls` in [model]",
        ))
    }

    /// The model that agents use, and what else can be reached. Contains no API keys.
    ///
    /// # Errors
    /// The settings name something that cannot be a model.
    pub async fn models(&self) -> Result<Arc<Survey>, OrchestratorError> {
        let models = &self.core.models;
        let mut kept = models.survey.lock().await;
        if let Some((time, survey)) = &*kept
            && time.elapsed() < SURVEY_AGE
        {
            return Ok(Arc::clone(survey));
        }
        let settings = models.lock().settings.clone();
        let survey = model::survey(&settings)
            .await
            .map_err(|error| OrchestratorError::Agent { why: error.to_string() })?;
        let survey = Arc::new(survey);
        *kept = Some((Instant::now(), Arc::clone(&survey)));
        Ok(survey)
    }
}
