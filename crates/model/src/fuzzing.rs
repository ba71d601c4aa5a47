//! Entry points for the fuzz targets, compiled with the feature `fuzzing`: parse what model servers send.

use std::time::Duration;

use serde_json::Value;

use crate::http::{Endpoint, KeyHeader, ServerLocation, client};
use crate::name::{Dialect, ModelName};
use crate::sse::SseDecoder;
use crate::{anthropic, gemini, lenient, openai, responses};

thread_local! {
    static ENDPOINT: Option<Endpoint> = client(Duration::from_secs(1), ServerLocation::Local).ok().map(|client| Endpoint {
        client,
        name: ModelName::new("fuzz/fuzz"),
        base_url: "http://127.0.0.1:1".into(),
        key: None,
        key_header: KeyHeader::Bearer,
        headers: &[],
        silence: Duration::from_secs(1),
    });
}

/// Parses an event stream, split in two pieces, in the API format selected by `kind`; or parses text that may contain
/// calls.
pub fn read_answer(kind: u8, bytes: &[u8]) {
    if kind % 5 == 4 {
        let text = String::from_utf8_lossy(bytes);
        let _ = lenient::parse(&text);
        let _ = lenient::find_objects(&text);
        return;
    }
    let mut decoder = SseDecoder::default();
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let mut events = Vec::new();
    for piece in [first, second] {
        match decoder.push(piece) {
            Ok(some) => events.extend(some),
            Err(_) => return,
        }
    }
    events.extend(decoder.finish());
    let values: Vec<Value> =
        events.iter().filter_map(|event| serde_json::from_str(&event.data).ok()).collect();
    ENDPOINT.with(|endpoint| {
        let Some(endpoint) = endpoint else { return };
        let (draft, dialect) = match kind % 5 {
            0 => (openai::fuzz(endpoint, &values), Dialect::OpenAi),
            1 => (responses::fuzz(endpoint, &values), Dialect::Responses),
            2 => (anthropic::fuzz(endpoint, &values), Dialect::Anthropic),
            _ => (gemini::fuzz(endpoint, &values), Dialect::Gemini),
        };
        if let Some(draft) = draft {
            drop(draft.finish(&endpoint.name, dialect, None));
        }
    });
}
