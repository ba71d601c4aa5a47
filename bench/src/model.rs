//! A model server that answers immediately in the chat completions format, and records when each request arrived and
//! when its answer was sent: the time in between two exchanges is the agent's.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The calls of an answer: tool names and inputs.
pub(crate) type Calls = Vec<(&'static str, Value)>;

/// Chooses an answer, given the number of earlier answers in the conversation and the number of all requests so far.
type Answers = dyn Fn(usize, usize) -> Calls + Send + Sync;

/// One request and its answer.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    /// When the request had arrived completely.
    pub(crate) asked: Instant,
    /// When the answer had been sent.
    pub(crate) answered: Instant,
    /// The same as wall-clock time, in seconds since 1970.
    pub(crate) answered_s: f64,
    /// The newest tool result in the request.
    pub(crate) result: String,
}

/// A running server; stops on drop.
pub(crate) struct InstantModel {
    pub(crate) address: SocketAddr,
    exchanges: Arc<Mutex<Vec<Exchange>>>,
    task: JoinHandle<()>,
}

impl Drop for InstantModel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl InstantModel {
    pub(crate) async fn start(
        answers: impl Fn(usize, usize) -> Calls + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening for the agent")?;
        let address = listener.local_addr()?;
        let exchanges: Arc<Mutex<Vec<Exchange>>> = Arc::default();
        let (kept, answers): (_, Arc<Answers>) = (Arc::clone(&exchanges), Arc::new(answers));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                tokio::spawn(serve(stream, Arc::clone(&kept), Arc::clone(&answers)));
            }
        });
        Ok(Self { address, exchanges, task })
    }

    /// The settings that make a server use it.
    pub(crate) fn settings(&self) -> String {
        format!("[model]\nname = \"http://{}/v1\"\n", self.address)
    }

    /// All exchanges so far, in order.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve(mut stream: TcpStream, exchanges: Arc<Mutex<Vec<Exchange>>>, answers: Arc<Answers>) {
    let mut buffer: Vec<u8> = Vec::new();
    while let Some((path, body)) = read_request(&mut stream, &mut buffer).await {
        let asked = Instant::now();
        if !path.ends_with("/chat/completions") {
            let list = json!({"data": [{"id": "instant", "owned_by": "vllm", "max_model_len": 200_000}]})
                .to_string();
            let (status, text) =
                if path.ends_with("/models") { ("200 OK", list) } else { ("404 Not Found", "{}".into()) };
            if send(&mut stream, status, "application/json", &text).await.is_none() {
                return;
            }
            continue;
        }
        let turn = count(&body, br#""role":"assistant""#);
        let number = exchanges.lock().unwrap_or_else(PoisonError::into_inner).len();
        let text = events_of(&answers(turn, number));
        if send(&mut stream, "200 OK", "text/event-stream", &text).await.is_none() {
            return;
        }
        let (answered, wall) = (Instant::now(), SystemTime::now());
        let answered_s = wall.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        let result = newest_result(&body);
        let exchange = Exchange { asked, answered, answered_s, result };
        exchanges.lock().unwrap_or_else(PoisonError::into_inner).push(exchange);
    }
}

/// Reads the next request: path and body.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
    let path = head.split_whitespace().nth(1)?.to_owned();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let whole = end + 4 + length.unwrap_or(0usize);
    while buffer.len() < whole {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = buffer[end + 4..whole].to_vec();
    buffer.drain(..whole);
    Some((path, body))
}

async fn send(stream: &mut TcpStream, status: &str, media_type: &str, text: &str) -> Option<()> {
    let length = text.len();
    let answer =
        format!("HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\r\n{text}");
    stream.write_all(answer.as_bytes()).await.ok()
}

/// An answer as a chat completions stream.
fn events_of(calls: &Calls) -> String {
    let calls: Vec<Value> = calls
        .iter()
        .enumerate()
        .map(|(index, (name, input))| {
            let function = json!({"name": name, "arguments": input.to_string()});
            json!({"index": index, "id": format!("c{index}"), "type": "function", "function": function})
        })
        .collect();
    let first = json!({"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": calls}}]});
    let last = json!({
        "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 10}
    });
    format!("data: {first}\n\ndata: {last}\n\ndata: [DONE]\n\n")
}

fn count(body: &[u8], wanted: &[u8]) -> usize {
    body.windows(wanted.len()).filter(|part| *part == wanted).count()
}

/// The text of the last tool message, found without parsing the whole conversation.
fn newest_result(body: &[u8]) -> String {
    let wanted = br#""role":"tool""#;
    let Some(place) = body.windows(wanted.len()).rposition(|part| part == wanted) else {
        return String::new();
    };
    let from = place.saturating_sub(2000);
    String::from_utf8_lossy(&body[from..body.len().min(place + 2000)]).into_owned()
}
