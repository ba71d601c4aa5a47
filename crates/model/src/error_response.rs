//! Classifies error responses: from status and body to a [`ModelError`]. One function for all APIs, because gateways
//! and local servers mix their messages.

use std::time::Duration;

use serde_json::Value;

use crate::error::ModelError;

/// The maximum length of a provider's message in an error, in characters.
const MAX_WORDS: usize = 600;

/// Phrases for a conversation that is too long.
const OVERFLOW_WORDS: [&str; 12] = [
    "context_length_exceeded",
    "exceed_context_size",
    "maximum context length",
    "context length",
    "context size",
    "context window",
    "prompt is too long",
    "input is too long",
    "input token count",
    "too many tokens",
    "maximum prompt length",
    "request_too_large",
];

/// Phrases for missing credit.
const CREDIT_WORDS: [&str; 5] =
    ["insufficient_quota", "credit balance", "billing_error", "insufficient credits", "insufficient balance"];

/// Phrases for a refusal.
const REFUSAL_WORDS: [&str; 4] = ["content_policy", "content_filter", "usage policy", "safety"];

/// An error response.
#[derive(Debug)]
pub(crate) struct ErrorResponse<'a> {
    pub(crate) model: &'a str,
    /// HTTP status; 0 if the error arrived inside a stream.
    pub(crate) status: u16,
    /// From the response headers.
    pub(crate) retry_after: Option<Duration>,
    /// The body, with keys redacted.
    pub(crate) body: &'a str,
}

impl ErrorResponse<'_> {
    /// Determines the kind of error.
    pub(crate) fn classify(&self) -> ModelError {
        let body: Value = serde_json::from_str(self.body).unwrap_or(Value::Null);
        let error = error_object(&body);
        let detail = self.detail(error);
        let codes = codes_of(error);
        let said = format!("{codes} {detail}").to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
        let model = self.model.to_owned();
        let retry_after = self.retry_after.or_else(|| retry_delay(error));
        if says(&CREDIT_WORDS) || self.status == 402 {
            return ModelError::NoCredit { model, detail };
        }
        let status = if self.status == 0 { status_of(error, &codes) } else { self.status };
        match status {
            400 | 413 | 422 | 500 if says(&OVERFLOW_WORDS) => {
                let (requested, limit) = token_counts(error, &detail);
                ModelError::Overflow { model, requested, limit, detail }
            }
            401 => key_rejected(model, &detail),
            403 if says(&REFUSAL_WORDS) => ModelError::Refused { model, detail },
            403 => key_rejected(model, &detail),
            400 if said.contains("api key not valid") || said.contains("invalid api key") => {
                key_rejected(model, &detail)
            }
            404 => ModelError::UnknownModel { model, detail },
            429 => ModelError::RateLimited { model, retry_after, detail },
            408 | 409 | 425 | 500.. => ModelError::Server { model, status: self.status, retry_after, detail },
            _ if says(&REFUSAL_WORDS) => ModelError::Refused { model, detail },
            _ => ModelError::Rejected { model, detail },
        }
    }

    fn detail(&self, error: &Value) -> String {
        let words =
            [&error["message"], error, &error["error"], &error["detail"]].into_iter().find_map(Value::as_str);
        let raw = error["metadata"]["raw"].as_str().map(|raw| format!(" ({raw})")).unwrap_or_default();
        let text = match words {
            Some(words) => format!("{words}{raw}"),
            None if self.body.trim().is_empty() => String::from("no words"),
            None => self.body.split_whitespace().collect::<Vec<_>>().join(" "),
        };
        let short: String = text.chars().take(MAX_WORDS).collect();
        if self.status == 0 { short } else { format!("{short} (HTTP {})", self.status) }
    }
}

fn key_rejected(model: String, detail: &str) -> ModelError {
    ModelError::Auth { model, detail: format!("the key was not accepted: {detail}") }
}

/// Finds the error in `{"error": {...}}`, `{"error": "words"}`, `[{"error": ...}]` or `{"message": ...}`.
fn error_object(body: &Value) -> &Value {
    let body = body.get(0).unwrap_or(body);
    body.get("error").unwrap_or(body)
}

fn codes_of(error: &Value) -> String {
    ["type", "code", "status"].iter().filter_map(|key| error[*key].as_str()).collect::<Vec<_>>().join(" ")
}

/// Determines the status from the body, because an error inside a stream has no HTTP status.
fn status_of(error: &Value, codes: &str) -> u16 {
    if let Some(code) = error["code"].as_u64().and_then(|code| u16::try_from(code).ok()) {
        return code;
    }
    let known = [
        ("rate_limit", 429),
        ("RESOURCE_EXHAUSTED", 429),
        ("authentication", 401),
        ("permission", 403),
        ("not_found", 404),
        ("invalid_request", 400),
        ("INVALID_ARGUMENT", 400),
        ("exceed_context", 400),
    ];
    known.into_iter().find(|(word, _)| codes.contains(word)).map_or(500, |(_, status)| status)
}

/// Google reports the delay in the body: `"retryDelay": "39s"`.
fn retry_delay(error: &Value) -> Option<Duration> {
    let details = error["details"].as_array()?;
    let text = details.iter().find_map(|detail| detail["retryDelay"].as_str())?;
    seconds(text.strip_suffix('s')?)
}

/// A plausible number of seconds.
fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    (0.0..=86_400.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// Parses `Retry-After`: seconds, or a date.
pub(crate) fn retry_after(value: &str, now: time::OffsetDateTime) -> Option<Duration> {
    let date = || {
        let date =
            time::OffsetDateTime::parse(value.trim(), &time::format_description::well_known::Rfc2822).ok()?;
        Duration::try_from(date - now).ok().or(Some(Duration::ZERO))
    };
    seconds(value).or_else(date)
}

/// Tokens of the request and the limit, if the provider reports them.
fn token_counts(error: &Value, detail: &str) -> (Option<u64>, Option<u64>) {
    if let (Some(requested), Some(limit)) = (error["n_prompt_tokens"].as_u64(), error["n_ctx"].as_u64()) {
        return (Some(requested), Some(limit));
    }
    let lower = detail.split(" (HTTP ").next().unwrap_or_default().to_lowercase();
    let after = ["maximum", "limit", "at most"].iter().filter_map(|word| lower.find(word)).min();
    let limit = after.and_then(|at| numbers(&lower[at..]).next()).or_else(|| numbers(&lower).min());
    let requested = numbers(&lower).max().filter(|number| limit.is_some_and(|limit| *number > limit));
    (requested, limit)
}

/// Integers in a text that may be token counts.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split(|c: char| !c.is_ascii_digit() && c != ',')
        .filter_map(|word| word.replace(',', "").parse().ok())
        .filter(|number| *number >= 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classify(status: u16, body: &str) -> ModelError {
        ErrorResponse { model: "m", status, retry_after: None, body }.classify()
    }

    #[test]
    fn context_overflow_errors_of_all_providers_are_recognized_with_token_counts() {
        for (status, body, requested, limit) in [
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in the messages, 500 in the completion).","code":"context_length_exceeded"}}"#,
                5000,
                4096,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 215000 tokens > 200000 maximum"}}"#,
                215_000,
                200_000,
            ),
            (
                400,
                r#"[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]"#,
                1_200_000,
                1_048_576,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":17000,"n_ctx":16384}}"#,
                17_000,
                16_384,
            ),
            (
                0,
                r#"{"error":{"type":"invalid_request_error","message":"prompt is too long: 215,000 tokens > 200,000 maximum"}}"#,
                215_000,
                200_000,
            ),
        ] {
            match classify(status, body) {
                ModelError::Overflow { requested: found, limit: allowed, .. } => {
                    assert_eq!((found, allowed), (Some(requested), Some(limit)), "{body}");
                }
                other => panic!("{body}: {other:?}"),
            }
        }
    }

    #[test]
    fn statuses_and_codes_are_classified() {
        for (status, body, code) in [
            (401, r#"{"error":{"message":"Incorrect API key provided"}}"#, "model_auth"),
            (
                400,
                r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}"#,
                "model_auth",
            ),
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#,
                "model_no_credit",
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}"#,
                "model_no_credit",
            ),
            (429, r#"{"error":{"message":"slow down","type":"rate_limit_error"}}"#, "rate_limited"),
            (
                529,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                "model_server",
            ),
            (
                0,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                "model_server",
            ),
            (404, r#"{"error":"model 'x' not found"}"#, "unknown_model"),
            (400, r#"{"error":{"message":"tools: wrong"}}"#, "model_rejected"),
            (400, r#"{"error":{"message":"flagged","code":"content_policy_violation"}}"#, "model_refused"),
            (503, "<html>busy</html>", "model_server"),
            (502, "", "model_server"),
        ] {
            assert_eq!(classify(status, body).code(), code, "{status} {body}");
        }
    }

    #[test]
    fn retry_after_is_parsed_from_seconds_dates_and_bodies() {
        let now = time::OffsetDateTime::from_unix_timestamp(1_445_412_470).unwrap();
        assert_eq!(retry_after("7", now), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("0.5", now), Some(Duration::from_millis(500)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now), Some(Duration::from_secs(10)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:00:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(retry_after("soon", now), None);
        assert_eq!(retry_after("-3", now), None);
        let body = r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"quota","details":[{"retryDelay":"39s"}]}}"#;
        assert_eq!(classify(429, body).retry_after(), Some(Duration::from_secs(39)));
    }
}
