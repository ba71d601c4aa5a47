//! A minimal HTTP/1.1 server that can also misbehave on purpose: one request per connection, and a chunked response
//! that may be cut off.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::dialect::{self, Event};
use super::script::{Fault, ScriptedAnswer};
use super::view;
use super::{Recorded, Shared};
use crate::name::Dialect;

const MAX_HEAD: usize = 64 * 1024;
const MAX_BODY: usize = 64 * 1024 * 1024;

/// Serves until it is dropped; its connections are dropped with it.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let shared = Arc::clone(&shared);
                    connections.spawn(async move {
                        // Tests include clients that disconnect early.
                        let _ = serve_one(stream, &shared).await;
                    });
                }
                Err(_) => tokio::task::yield_now().await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

async fn serve_one(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let Some(request) = read_request(&mut stream).await? else { return Ok(()) };
    let path = request.path.split('?').next().unwrap_or_default().to_owned();
    if request.method == "GET" {
        return match path.as_str() {
            "/v1/models" | "/v1beta/models" => {
                let script = &shared.script;
                let model = json!({"id": script.model, "object": "model", "owned_by": "scripted", "max_model_len": script.context_tokens});
                write_json(&mut stream, 200, &[], &json!({"object": "list", "data": [model]})).await
            }
            // For tests that only use HTTP.
            "/requests" => write_json(&mut stream, 200, &[], &json!(shared.requests())).await,
            _ => {
                write_json(&mut stream, 404, &[], &json!({"error": {"message": "there is nothing here"}}))
                    .await
            }
        };
    }
    let Some(dialect) = dialect_of(&path) else {
        return write_json(&mut stream, 404, &[], &json!({"error": {"message": "there is nothing here"}}))
            .await;
    };
    let body: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
    let view = view::view(dialect, &body);
    let index = shared.played.lock().unwrap_or_else(PoisonError::into_inner).take(&shared.script, &view);
    shared.record(Recorded { path, headers: request.headers, body: body.clone(), answer: index });
    let Some(index) = index else {
        let words = format!(
            "the script has no answer for this request (turn {}, results {:?})",
            view.turns, view.results
        );
        return write_json(&mut stream, 400, &[], &dialect::error(dialect, 400, &words)).await;
    };
    let letters = request.body.len();
    let answer = shared.script.answers[index].about(&view.user);
    let result = play(&mut stream, dialect, &answer, shared, letters).await;
    if result.is_err() {
        shared.played.lock().unwrap_or_else(PoisonError::into_inner).give_back(index);
    }
    result
}

fn dialect_of(path: &str) -> Option<Dialect> {
    match path.rsplit('/').next()? {
        "completions" => Some(Dialect::OpenAi),
        "responses" => Some(Dialect::Responses),
        "messages" => Some(Dialect::Anthropic),
        last if last.ends_with(":streamGenerateContent") => Some(Dialect::Gemini),
        _ => None,
    }
}

async fn play(
    stream: &mut TcpStream,
    dialect: Dialect,
    answer: &ScriptedAnswer,
    shared: &Shared,
    letters: usize,
) -> std::io::Result<()> {
    tokio::time::sleep(Duration::from_millis(answer.delay_ms)).await;
    let refused = |status, words: &str| (status, dialect::error(dialect, status, words));
    let refusal = match &answer.fault {
        Some(Fault::RateLimited { .. }) => Some(refused(429, "too many requests")),
        Some(Fault::Status { status, message }) => Some(refused(*status, message)),
        Some(Fault::BadKey) => Some(refused(401, "the key is not known")),
        Some(Fault::Overflow) => Some((400, dialect::overflow(dialect))),
        _ => None,
    };
    if let Some((status, body)) = refusal {
        let seconds = match &answer.fault {
            Some(Fault::RateLimited { retry_after_s: Some(seconds) }) => {
                vec![("retry-after", seconds.to_string())]
            }
            _ => Vec::new(),
        };
        return write_json(stream, status, &seconds, &body).await;
    }
    let events = dialect::events(dialect, answer, &shared.script.model, letters);
    let half = events.len() / 2;
    let (count, after) = match &answer.fault {
        None => (events.len(), After::End),
        Some(Fault::Cut { after_events }) => (after_events.unwrap_or(half).min(events.len()), After::Close),
        Some(Fault::MalformedEvent) => (half, After::Event(Event { name: "", data: "{\"half\": ".into() })),
        Some(Fault::ErrorEvent) => (half, After::Event(dialect::error_event(dialect))),
        Some(Fault::Silence { milliseconds }) => (half, After::Wait(Duration::from_millis(*milliseconds))),
        Some(_) => (0, After::Close),
    };
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        .await?;
    for (sent, event) in events[..count].iter().enumerate() {
        if let Some(stop) = answer.hold_after_events.iter().position(|after| *after == sent) {
            // The sender lives as long as this server.
            let _ = shared.releases.subscribe().wait_for(|releases| *releases > stop).await;
        }
        write_event(stream, event).await?;
        tokio::time::sleep(Duration::from_millis(answer.event_delay_ms)).await;
    }
    match after {
        After::Event(event) => write_event(stream, &event).await?,
        // A cut means closing without the last chunk.
        After::Close => return stream.shutdown().await,
        After::Wait(silence) => {
            let mut byte = [0];
            let _ = tokio::time::timeout(silence, stream.read(&mut byte)).await;
            return stream.shutdown().await;
        }
        After::End => {}
    }
    stream.write_all(b"0\r\n\r\n").await?;
    stream.shutdown().await
}

/// What follows the events.
enum After {
    End,
    Close,
    Event(Event),
    Wait(Duration),
}

async fn write_event(stream: &mut TcpStream, event: &Event) -> std::io::Result<()> {
    let text = match event.name {
        "" => format!("data: {}\n\n", event.data),
        name => format!("event: {name}\ndata: {}\n\n", event.data),
    };
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
    stream.flush().await
}

async fn write_json(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: &Value,
) -> std::io::Result<()> {
    let body = body.to_string();
    let mut head = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n",
        body.len()
    );
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).await?;
    stream.shutdown().await
}

/// Reads a complete request; `None` if the client disconnected or sent something else.
async fn read_request(stream: &mut TcpStream) -> std::io::Result<Option<Request>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if bytes.len() > MAX_HEAD || stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let pair =
        |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    let headers: Vec<(String, String)> = lines.filter_map(pair).collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok());
    let length: usize = length.unwrap_or(0);
    if length > MAX_BODY {
        return Ok(None);
    }
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(Request { method: method.to_owned(), path: path.to_owned(), headers, body }))
}
