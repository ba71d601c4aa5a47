//! Asks an OpenAI-compatible server what it is and what its models can do. Each kind of server reports this
//! differently.

use std::time::Duration;

use serde_json::{Value, json};

use crate::error::ModelError;
use crate::http::Endpoint;

/// Timeout of each request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of Ollama models whose details are queried.
const MAX_DESCRIBED: usize = 32;
/// By default, Ollama silently truncates conversations at this many tokens.
const OLLAMA_CONTEXT: u32 = 4096;

/// The server software.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Ollama,
    LlamaCpp,
    LmStudio,
    Vllm,
    Other,
}

impl ServerKind {
    /// The display name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ollama => "ollama",
            Self::LlamaCpp => "llama.cpp",
            Self::LmStudio => "lm studio",
            Self::Vllm => "vllm",
            Self::Other => "openai-compatible",
        }
    }
}

/// A model that a server offers, as far as the server describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServedModel {
    pub(crate) id: String,
    pub(crate) context_tokens: Option<u32>,
    pub(crate) vision: Option<bool>,
    pub(crate) tools: Option<bool>,
    pub(crate) reasoning: Option<bool>,
    /// Number of parameters.
    pub(crate) parameters: Option<u64>,
    /// Whether it is already in memory.
    pub(crate) is_loaded: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) kind: ServerKind,
    pub(crate) models: Vec<ServedModel>,
}

/// Queries a server. Fails if the server is unreachable or does not return a list of models.
pub(crate) async fn query_server(endpoint: &Endpoint) -> Result<Server, ModelError> {
    let list = endpoint.get("/models", TIMEOUT).await?;
    let data = list["data"].as_array().or_else(|| list["models"].as_array());
    let data = data.ok_or_else(|| endpoint.malformed("/models has no list of models"))?;
    let models: Vec<ServedModel> = data.iter().filter_map(served).collect();
    let root = Endpoint { base_url: root_of(&endpoint.base_url).to_owned(), ..endpoint.clone() };
    let owner = data.first().and_then(|model| model["owned_by"].as_str()).unwrap_or_default();
    if owner == "vllm" {
        return Ok(Server { kind: ServerKind::Vllm, models });
    }
    if let Ok(props) = root.get("/props", TIMEOUT).await
        && props.get("default_generation_settings").is_some()
    {
        let models = models.into_iter().map(|model| with_props(model, &props)).collect();
        return Ok(Server { kind: ServerKind::LlamaCpp, models });
    }
    if root.get("/api/version", TIMEOUT).await.is_ok_and(|version| version["version"].is_string()) {
        return Ok(Server { kind: ServerKind::Ollama, models: describe_ollama(&root, models).await });
    }
    if let Ok(list) = root.get("/api/v0/models", TIMEOUT).await
        && let Some(data) = list["data"].as_array()
    {
        let is_chat = |model: &&Value| model["type"] != "embeddings";
        let models = data.iter().filter(is_chat).filter_map(lm_studio).collect();
        return Ok(Server { kind: ServerKind::LmStudio, models });
    }
    Ok(Server { kind: ServerKind::Other, models })
}

/// The URL without `/v1`.
fn root_of(base_url: &str) -> &str {
    base_url.strip_suffix("/v1").unwrap_or(base_url)
}

fn tokens(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
}

fn served(model: &Value) -> Option<ServedModel> {
    let keys = ["max_model_len", "context_length", "context_window", "max_context_length"];
    Some(ServedModel {
        id: model["id"].as_str().or_else(|| model["name"].as_str())?.to_owned(),
        context_tokens: keys.iter().find_map(|key| tokens(&model[*key])),
        parameters: model["meta"]["n_params"].as_u64(),
        ..ServedModel::default()
    })
}

/// llama.cpp serves one model, described under `/props`.
fn with_props(model: ServedModel, props: &Value) -> ServedModel {
    let caps = &props["chat_template_caps"];
    let said = caps["supports_tools"].as_bool().or_else(|| caps["supports_tool_calls"].as_bool());
    let template = props["chat_template"].as_str();
    ServedModel {
        context_tokens: tokens(&props["default_generation_settings"]["n_ctx"]).or(model.context_tokens),
        vision: Some(props["modalities"]["vision"] == json!(true)),
        tools: said.or_else(|| template.map(|template| template.contains("tools"))),
        is_loaded: true,
        ..model
    }
}

async fn describe_ollama(root: &Endpoint, models: Vec<ServedModel>) -> Vec<ServedModel> {
    let running = root.get("/api/ps", TIMEOUT).await.unwrap_or(Value::Null);
    let running = running["models"].as_array().cloned().unwrap_or_default();
    let mut described = Vec::new();
    for (index, model) in models.into_iter().enumerate() {
        let loaded = running
            .iter()
            .find(|other| other["name"] == model.id.as_str() || other["model"] == model.id.as_str());
        let show = match index < MAX_DESCRIBED {
            true => root.ask("/api/show", &json!({"model": model.id}), TIMEOUT).await.unwrap_or(Value::Null),
            false => Value::Null,
        };
        let can =
            |word: &str| show["capabilities"].as_array().map(|list| list.iter().any(|item| item == word));
        if can("embedding") == Some(true) && can("completion") != Some(true) {
            continue;
        }
        let set = show["parameters"].as_str().and_then(|text| {
            text.lines().find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok())
        });
        described.push(ServedModel {
            context_tokens: loaded
                .and_then(|model| tokens(&model["context_length"]))
                .or(set)
                .or(Some(OLLAMA_CONTEXT)),
            vision: can("vision"),
            tools: can("tools"),
            reasoning: can("thinking"),
            parameters: show["model_info"]["general.parameter_count"].as_u64(),
            is_loaded: loaded.is_some(),
            ..model
        });
    }
    described
}

fn lm_studio(model: &Value) -> Option<ServedModel> {
    let can = |word: &str| model["capabilities"].as_array().map(|list| list.iter().any(|item| item == word));
    Some(ServedModel {
        id: model["id"].as_str()?.to_owned(),
        context_tokens: tokens(&model["loaded_context_length"])
            .or_else(|| tokens(&model["max_context_length"])),
        vision: Some(model["type"] == "vlm"),
        tools: can("tool_use"),
        is_loaded: model["state"] == "loaded",
        ..ServedModel::default()
    })
}
