//! Follows the events of a job, reconnecting when the connection is lost.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use super::http_client::Client;

/// How often to reconnect, a second apart.
const RECONNECTS: u32 = 60;
/// The page size of [`page`].
const PAGE: usize = 1000;

/// How a connection ended.
enum StreamEnd {
    /// The job has ended.
    JobEnded,
    /// The connection ended before the job.
    Disconnected,
}

/// The next events after a position in the log, without waiting for new ones, and the position of the last of them;
/// `None` if there are no more.
pub(crate) async fn page(client: &Client, path: &str, after: u64) -> Result<Option<(Vec<Value>, u64)>> {
    let mut page = client.get(&format!("{path}?format=json&limit={PAGE}&after={after}")).await?;
    let events = match page["events"].take() {
        Value::Array(events) if !events.is_empty() => events,
        _ => return Ok(None),
    };
    let last = page["next"].as_u64().context("the server did not say where its list ends")?;
    Ok(Some((events, last)))
}

/// Passes every event to `show` until the job ends; after a lost connection it continues with the next event.
pub(crate) async fn follow(client: &Client, path: &str, show: impl FnMut(&Value)) -> Result<()> {
    follow_after(client, path, 0, show).await
}

/// Like [`follow`], but only for events after a position in the log.
pub(crate) async fn follow_after(
    client: &Client,
    path: &str,
    after: u64,
    mut show: impl FnMut(&Value),
) -> Result<()> {
    let mut last_id = after;
    let mut failures = 0;
    loop {
        match follow_once(client, path, &mut show, &mut last_id).await {
            Ok(StreamEnd::JobEnded) => return Ok(()),
            Ok(StreamEnd::Disconnected) => failures = 0,
            // Nothing has been received yet: waiting does not fix a wrong id or address.
            Err(error) if failures >= RECONNECTS || last_id == 0 => return Err(error),
            Err(_) => failures += 1,
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn follow_once(
    client: &Client,
    path: &str,
    show: &mut impl FnMut(&Value),
    last_id: &mut u64,
) -> Result<StreamEnd> {
    let request = client.request(Method::GET, path);
    let request = request.header("Accept", "text/event-stream").header("Last-Event-ID", last_id.to_string());
    let mut body = client.send(request).await?.bytes_stream();
    let mut buffer = Vec::new();
    while let Some(bytes) = body.next().await {
        buffer.extend_from_slice(&bytes?);
        while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
            let message: Vec<u8> = buffer.drain(..end + 2).collect();
            match Message::parse(&String::from_utf8_lossy(&message), last_id) {
                Message::End => return Ok(StreamEnd::JobEnded),
                Message::Event(event) => show(&event),
                Message::Ignored => {}
            }
        }
    }
    Ok(StreamEnd::Disconnected)
}

/// One message of the stream.
enum Message {
    Event(Value),
    End,
    Ignored,
}

impl Message {
    fn parse(text: &str, last_id: &mut u64) -> Self {
        let mut data = String::new();
        let mut kind = "";
        for line in text.lines() {
            if let Some(value) = line.strip_prefix("id:") {
                *last_id = value.trim().parse().unwrap_or(*last_id);
            } else if let Some(value) = line.strip_prefix("event:") {
                kind = value.trim();
            } else if let Some(value) = line.strip_prefix("data:") {
                data += value.strip_prefix(' ').unwrap_or(value);
            }
        }
        match (kind, serde_json::from_str(&data)) {
            ("end", _) => Self::End,
            // Streamed model text, which is not part of the event log.
            ("delta", Ok(words)) => Self::Event(json!({"kind": "delta", "data": Value::clone(&words)})),
            (_, Ok(event)) => Self::Event(event),
            _ => Self::Ignored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_stream_message_is_parsed() {
        let mut last_id = 0;
        let parsed = Message::parse("id: 7\nevent: note\ndata: {\"kind\": \"note\"}\n\n", &mut last_id);
        assert!(matches!(parsed, Message::Event(event) if event["kind"] == "note"));
        assert_eq!(last_id, 7);
        let words = Message::parse("event: delta\ndata: {\"turn\":1,\"text\":\"a\"}\n\n", &mut last_id);
        assert!(matches!(words, Message::Event(event) if event["data"]["text"] == "a"));
        assert_eq!(last_id, 7, "they have no place in the log");
        assert!(matches!(Message::parse("event: end\ndata: {}\n\n", &mut last_id), Message::End));
        assert!(matches!(Message::parse(": still here\n\n", &mut last_id), Message::Ignored));
    }
}
