//! Local servers of each kind, with the formats in which they describe themselves: Ollama, llama.cpp, LM Studio,
//! vLLM.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;

use model::{Offer, Settings};
use serde_json::{Value, json};

/// A server with fixed responses by method and path, and `otherwise` for all others.
fn server(answers: Vec<(&'static str, Value)>, otherwise: (u16, &'static str)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let answers: HashMap<&str, Value> = answers.into_iter().collect();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let (mut request, mut piece) = (Vec::new(), [0; 4096]);
            let (head, body) = loop {
                let count = stream.read(&mut piece).unwrap_or(0);
                request.extend_from_slice(&piece[..count]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else {
                    assert!(count > 0, "half a request: {text}");
                    continue;
                };
                let length = head.to_ascii_lowercase().lines().find_map(|line| {
                    line.strip_prefix("content-length:").and_then(|value| value.trim().parse::<usize>().ok())
                });
                if body.len() >= length.unwrap_or(0) {
                    break (head.to_owned(), body.to_owned());
                }
            };
            let words: Vec<&str> = head.split_whitespace().take(2).collect();
            // A request that names a model gets the response for that model.
            let named = serde_json::from_str::<Value>(&body).ok();
            let model = named.as_ref().and_then(|body| body["model"].as_str()).unwrap_or_default();
            let key = format!("{} {} {model}", words[0], words[1]);
            let (status, text) = match answers.get(key.trim()) {
                Some(answer) => (200, answer.to_string()),
                None => (otherwise.0, otherwise.1.to_owned()),
            };
            let length = text.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
            );
        }
    });
    url
}

async fn offers(url: &str) -> (String, Vec<Offer>) {
    let settings = Settings { name: Some(url.to_owned()), local: false, ..Settings::default() };
    let mut sources = model::list(&settings).await.unwrap();
    assert_eq!(sources[0].trouble, None);
    let source = sources.remove(0);
    (source.kind, source.models)
}

fn facts(offer: &Offer) -> (&str, Option<u32>, Option<bool>, Option<bool>) {
    let name = offer.name.as_str().rsplit('#').next().unwrap();
    (name, offer.context_tokens, offer.vision, offer.tools)
}

#[tokio::test]
async fn ollama_models_are_described_with_their_loaded_context() {
    let listed =
        |id: &str| json!({"id": id, "object": "model", "created": 1_760_000_000, "owned_by": "library"});
    let show = |capabilities: Value, parameters: &str| {
        json!({
            "modelfile": "# Modelfile", "parameters": parameters, "template": "{{ .Prompt }}",
            "details": {"format": "gguf", "family": "qwen3", "parameter_size": "8.2B", "quantization_level": "Q4_K_M"},
            "model_info": {"general.architecture": "qwen3", "general.parameter_count": 8_190_735_360_u64,
                "qwen3.context_length": 40960},
            "capabilities": capabilities, "modified_at": "2026-01-01T00:00:00Z"
        })
    };
    let url = server(
        vec![
            (
                "GET /v1/models",
                json!({"object": "list", "data": [listed("qwen3:8b"), listed("gemma3:4b"), listed("nomic-embed-text:latest")]}),
            ),
            ("GET /api/version", json!({"version": "0.12.6"})),
            (
                "GET /api/ps",
                json!({"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "size": 6_000_000_000_u64,
                    "digest": "500a1f067a9f", "expires_at": "2026-01-01T00:05:00Z", "size_vram": 0, "context_length": 16384}]}),
            ),
            (
                "POST /api/show qwen3:8b",
                show(json!(["completion", "tools", "thinking"]), "stop \"<|im_end|>\""),
            ),
            (
                "POST /api/show gemma3:4b",
                show(json!(["completion", "vision"]), "num_ctx                        8192"),
            ),
            ("POST /api/show nomic-embed-text:latest", show(json!(["embedding"]), "")),
        ],
        (404, "404 page not found"),
    );
    let (kind, models) = offers(&url).await;
    assert_eq!(kind, "ollama");
    let seen: Vec<_> = models.iter().map(facts).collect();
    let expected = [
        ("qwen3:8b", Some(16384), Some(false), Some(true)),
        ("gemma3:4b", Some(8192), Some(true), Some(false)),
    ];
    assert_eq!(seen, expected, "what embeds is no model to talk to");
    assert!(models.iter().all(|offer| offer.price.is_some_and(|price| price.output == 0.0)));
}

#[tokio::test]
async fn lm_studio_is_recognized_by_its_own_model_list() {
    let model = |id: &str, kind: &str, state: &str| {
        json!({"id": id, "object": "model", "type": kind, "publisher": "someone", "arch": "qwen2",
            "compatibility_type": "gguf", "quantization": "Q4_K_M", "state": state, "max_context_length": 32768})
    };
    let mut loaded = model("qwen2.5-7b-instruct", "llm", "loaded");
    loaded["loaded_context_length"] = json!(4096);
    loaded["capabilities"] = json!(["tool_use"]);
    let own = json!({"object": "list", "data": [
        model("qwen2-vl-7b-instruct", "vlm", "not-loaded"), loaded,
        model("text-embedding-nomic-embed-text-v1.5", "embeddings", "not-loaded"),
    ]});
    let plain = json!({"object": "list", "data": [
        {"id": "qwen2.5-7b-instruct", "object": "model", "owned_by": "organization_owner"},
        {"id": "qwen2-vl-7b-instruct", "object": "model", "owned_by": "organization_owner"},
    ]});
    let url = server(
        vec![("GET /v1/models", plain), ("GET /api/v0/models", own)],
        (200, r#"{"error":"Unexpected endpoint or method. (GET /props)"}"#),
    );
    let (kind, models) = offers(&url).await;
    assert_eq!(kind, "lm studio");
    let seen: Vec<_> = models.iter().map(facts).collect();
    let expected = [
        ("qwen2-vl-7b-instruct", Some(32768), Some(true), None),
        ("qwen2.5-7b-instruct", Some(4096), Some(false), Some(true)),
    ];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn vllm_reports_the_context_length_in_its_list() {
    let list = json!({"object": "list", "data": [{
        "id": "Qwen/Qwen2.5-Coder-7B-Instruct", "object": "model", "created": 1_760_000_000, "owned_by": "vllm",
        "root": "Qwen/Qwen2.5-Coder-7B-Instruct", "parent": null, "max_model_len": 32768,
        "permission": [{"id": "modelperm-1", "object": "model_permission", "allow_sampling": true}]
    }]});
    let url = server(vec![("GET /v1/models", list)], (404, r#"{"detail":"Not Found"}"#));
    let (kind, models) = offers(&url).await;
    assert_eq!(kind, "vllm");
    assert_eq!(facts(&models[0]), ("Qwen/Qwen2.5-Coder-7B-Instruct", Some(32768), None, None));
}

#[tokio::test]
async fn llama_cpp_reports_its_configured_context_length() {
    let list = json!({"object": "list", "models": [{"name": "model.gguf", "type": "model"}], "data": [{
        "id": "model.gguf", "object": "model", "created": 1_760_000_000, "owned_by": "llamacpp",
        "meta": {"vocab_type": 2, "n_vocab": 151_936, "n_ctx_train": 32768, "n_embd": 2048, "n_params": 3_085_938_688_u64}
    }]});
    let props = json!({
        "default_generation_settings": {"id": 0, "n_ctx": 8192, "speculative": false, "is_processing": false},
        "total_slots": 1, "model_path": "model.gguf", "modalities": {"vision": true, "audio": false},
        "chat_template": "{%- if tools %}{{ tools }}{%- endif %}", "bos_token": "", "eos_token": "<|im_end|>"
    });
    let url = server(
        vec![("GET /v1/models", list), ("GET /props", props)],
        (404, r#"{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}"#),
    );
    let (kind, models) = offers(&url).await;
    assert_eq!(kind, "llama.cpp");
    assert_eq!(facts(&models[0]), ("model.gguf", Some(8192), Some(true), Some(true)));
}
