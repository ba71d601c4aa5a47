//! Tests a model with a tiny request: whether its address, key and name are right.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use utoipa::ToSchema;

use crate::connect::connect;
use crate::error::ModelError;
use crate::message::Message;
use crate::name::ModelName;
use crate::output::finish;
use crate::request::ModelRequest;
use crate::settings::Settings;
use crate::usage::Usage;

/// The time limit of a test.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Enough for a word, and for providers that refuse a smaller limit.
const MAX_OUTPUT_TOKENS: u32 = 64;

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelTest {
    /// Whether the model answered.
    pub ok: bool,
    /// The model that answered.
    pub model: Option<ModelName>,
    /// Why it did not, for programs: `model_auth`, `model_unreachable`, ...
    pub code: Option<String>,
    /// The same for people.
    pub detail: String,
}

/// Sends the first model of the settings one tiny request, without retries. Fails after 30 seconds.
pub async fn test_model(settings: &Settings) -> ModelTest {
    match timeout(TIMEOUT, Box::pin(ask(settings))).await {
        Ok(Ok(model)) => {
            ModelTest { ok: true, detail: format!("{model} answers"), model: Some(model), code: None }
        }
        Ok(Err(error)) => failed(&error),
        Err(_) => {
            let model = settings.name.clone().unwrap_or_else(|| "the model".to_owned());
            failed(&ModelError::Silent { model, silence: TIMEOUT, lost: Usage::default() })
        }
    }
}

fn failed(error: &ModelError) -> ModelTest {
    ModelTest { ok: false, model: None, code: Some(error.code().to_owned()), detail: error.to_string() }
}

async fn ask(settings: &Settings) -> Result<ModelName, ModelError> {
    let settings = Settings { fallback: Vec::new(), retries: 0, ..settings.clone() };
    let model = connect(&settings).await?;
    let request = ModelRequest {
        messages: vec![Arc::new(Message::user("Reply with the word ok."))],
        max_output_tokens: Some(MAX_OUTPUT_TOKENS),
        ..ModelRequest::default()
    };
    let answer = finish(model.stream(Arc::new(request)).await?).await?;
    Ok(answer.model)
}
