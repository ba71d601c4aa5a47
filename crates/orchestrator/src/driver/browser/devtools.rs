//! A DevTools connection to one page of Chromium: calls with answers, and events. All sizes are bounded.

use std::collections::VecDeque;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use protocol::ByteStream;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::{BrowserError, PORT};

/// Maximum size of an HTTP response body, and of a WebSocket message.
const MAX_LIST_BYTES: usize = 1024 * 1024;
const MAX_MESSAGE_BYTES: usize = 48 * 1024 * 1024;
/// Events that are kept while waiting for an answer.
const MAX_EVENTS: usize = 4096;
/// Maximum number of dialogs reported per step.
const MAX_DIALOGS: usize = 50;
/// Maximum number of characters of a dialog's message.
const MAX_DIALOG_TEXT: usize = 2000;
/// Timeout of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Context for errors of the HTTP requests.
const LISTING_PAGES: &str = "asking the browser for its pages";
const NEW_PAGE: &str = "/json/new?about:blank";

type Stream = Box<dyn ByteStream>;

fn failed(doing: &str, error: &(impl std::fmt::Display + ?Sized)) -> BrowserError {
    BrowserError::Refused(format!("{doing}: {error}"))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    id: String,
    pub(super) url: String,
}

impl Page {
    pub(super) fn parse(page: &Value) -> Result<Self, BrowserError> {
        let text = |name: &str| page[name].as_str().unwrap_or_default().to_owned();
        let (id, url) = (text("id"), text("url"));
        if (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            Ok(Self { id, url })
        } else {
            Err(BrowserError::Refused("the browser has no page".into()))
        }
    }

    /// The path of its WebSocket.
    pub(super) fn path(&self) -> String {
        format!("/devtools/page/{}", self.id)
    }
}

/// The most recently used page; a new one if there is none.
pub(super) async fn find_page(mut stream: Stream) -> Result<Page, BrowserError> {
    let asking = async {
        let pages = ask(&mut stream, "GET", "/json/list").await?;
        let is_page = |page: &&Value| page["type"] == "page";
        let found = pages.as_array().and_then(|pages| pages.iter().find(is_page).cloned());
        match found {
            Some(page) => Ok(page),
            None => ask(&mut stream, "PUT", NEW_PAGE).await,
        }
    };
    Page::parse(&with_timeout(asking).await?)
}

/// Opens an empty page and closes the old one, which does not answer.
pub(super) async fn replace_page(mut stream: Stream, old: &Page) -> Result<Page, BrowserError> {
    let asking = async {
        let new = Page::parse(&ask(&mut stream, "PUT", NEW_PAGE).await?)?;
        tell(&mut stream, &format!("/json/close/{}", old.id)).await?;
        Ok(new)
    };
    with_timeout(asking).await
}

/// Hides a page behind another one for a moment, which makes the browser dismiss a dialog that blocks the page. Only
/// a connection that existed when the dialog opened could answer it.
pub(super) async fn dismiss_dialog(mut stream: Stream, page: &Page) -> Result<(), BrowserError> {
    let asking = async {
        let other = Page::parse(&ask(&mut stream, "PUT", NEW_PAGE).await?)?;
        tell(&mut stream, &format!("/json/activate/{}", page.id)).await?;
        tell(&mut stream, &format!("/json/close/{}", other.id)).await
    };
    with_timeout(asking).await
}

async fn with_timeout<T>(asking: impl Future<Output = Result<T, BrowserError>>) -> Result<T, BrowserError> {
    let answered = tokio::time::timeout(ANSWER_TIMEOUT, asking).await;
    answered.map_err(|_| BrowserError::Timeout("the browser does not answer about its pages".into()))?
}

/// One HTTP request with a JSON response; the connection stays open.
async fn ask(stream: &mut Stream, method: &str, path: &str) -> Result<Value, BrowserError> {
    let body = exchange(stream, method, path).await?;
    serde_json::from_slice(&body).map_err(|error| failed(LISTING_PAGES, &error))
}

/// One HTTP request whose response body is ignored.
async fn tell(stream: &mut Stream, path: &str) -> Result<(), BrowserError> {
    exchange(stream, "GET", path).await.map(|_| ())
}

async fn exchange(stream: &mut Stream, method: &str, path: &str) -> Result<Vec<u8>, BrowserError> {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| failed(LISTING_PAGES, &error))?;
    stream.flush().await.map_err(|error| failed(LISTING_PAGES, &error))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > 16 * 1024 {
            return Err(failed(LISTING_PAGES, "the answer has no end"));
        }
        head.push(stream.read_u8().await.map_err(|error| failed(LISTING_PAGES, &error))?);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let mut body = vec![0; content_length(&head)?];
    stream.read_exact(&mut body).await.map_err(|error| failed(LISTING_PAGES, &error))?;
    Ok(body)
}

/// The length of the body after this head, in lower case. Without it, the rest of the body would be taken for the next
/// response of the connection.
fn content_length(head: &str) -> Result<usize, BrowserError> {
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.ok_or_else(|| failed(LISTING_PAGES, "the answer does not say how long it is"))?;
    match length.trim().parse::<usize>() {
        Ok(length) if length <= MAX_LIST_BYTES => Ok(length),
        Ok(length) => Err(failed(
            LISTING_PAGES,
            &format!("the answer is too large: {length} bytes, more than {MAX_LIST_BYTES}"),
        )),
        Err(_) => Err(failed(LISTING_PAGES, "the length of the answer is not a number")),
    }
}

/// Whether a load event arrived after the document of this loader was committed.
fn is_loaded(events: &VecDeque<Value>, loader: &str) -> bool {
    let is_ours = |event: &&Value| {
        event["method"] == "Page.frameNavigated" && event["params"]["frame"]["loaderId"] == loader
    };
    let since = events.iter().skip_while(|event| !is_ours(event));
    since.into_iter().any(|event| event["method"] == "Page.loadEventFired")
}

pub(super) struct DevTools {
    socket: WebSocketStream<Stream>,
    next_id: u64,
    events: VecDeque<Value>,
    dialogs: Vec<Value>,
}

impl DevTools {
    pub(super) async fn connect(stream: Stream, page: &Page) -> Result<Self, BrowserError> {
        let address = format!("ws://127.0.0.1:{PORT}{}", page.path());
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        let connecting = tokio_tungstenite::client_async_with_config(address, stream, Some(config));
        let connected = tokio::time::timeout(ANSWER_TIMEOUT, connecting).await;
        let connected = connected.map_err(|_| BrowserError::Timeout("the page does not answer".into()))?;
        let (socket, _) = connected.map_err(|error| failed("connecting to the page", &error))?;
        Ok(Self { socket, next_id: 1, events: VecDeque::new(), dialogs: Vec::new() })
    }

    /// Calls a DevTools method and returns its result.
    pub(super) async fn call(&mut self, method: &str, parameters: Value) -> Result<Value, BrowserError> {
        self.call_within(method, parameters, ANSWER_TIMEOUT).await
    }

    /// Like [`Self::call`], with a different timeout.
    pub(super) async fn call_within(
        &mut self,
        method: &str,
        parameters: Value,
        patience: Duration,
    ) -> Result<Value, BrowserError> {
        let id = self.send(method, parameters).await?;
        let answered = tokio::time::timeout(patience, self.answer_to(id)).await;
        let busy = |_| BrowserError::Timeout(format!("{method}: the page is busy; open another one"));
        let answer = answered.map_err(busy)??;
        match answer.get("error") {
            Some(error) => Err(failed(method, error["message"].as_str().unwrap_or("refused"))),
            None => Ok(answer["result"].clone()),
        }
    }

    async fn send(&mut self, method: &str, parameters: Value) -> Result<u64, BrowserError> {
        let id = self.next_id;
        self.next_id += 1;
        let text = json!({ "id": id, "method": method, "params": parameters }).to_string();
        let sent = self.socket.send(Message::text(text)).await;
        sent.map_err(|error| failed(method, &error))?;
        Ok(id)
    }

    async fn answer_to(&mut self, id: u64) -> Result<Value, BrowserError> {
        loop {
            let message = self.next_message().await?;
            if message["id"] == id {
                return Ok(message);
            }
            self.keep(message);
        }
    }

    fn keep(&mut self, message: Value) {
        if message.get("method").is_some() {
            if self.events.len() == MAX_EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(message);
        }
    }

    /// The next message other than a dialog event. Dialogs are accepted here, because they block the page.
    async fn next_message(&mut self) -> Result<Value, BrowserError> {
        loop {
            let message = self.read_message().await?;
            if message["method"] != "Page.javascriptDialogOpening" {
                return Ok(message);
            }
            self.accept(&message["params"]).await?;
        }
    }

    async fn read_message(&mut self) -> Result<Value, BrowserError> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) => {
                    return serde_json::from_str(&text)
                        .map_err(|error| failed("reading from the page", &error));
                }
                Some(Err(Error::Capacity(_))) => {
                    let message = format!("the answer is too large: more than {MAX_MESSAGE_BYTES} bytes");
                    return Err(BrowserError::Refused(message));
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => {
                    let message = "the page was closed, or the browser has crashed";
                    return Err(BrowserError::Refused(message.into()));
                }
                Some(Ok(_)) => {}
            }
        }
    }

    /// Accepts a dialog with its proposed text and records its message. Does not wait for the answer.
    async fn accept(&mut self, dialog: &Value) -> Result<(), BrowserError> {
        if self.dialogs.len() < MAX_DIALOGS {
            let message = dialog["message"].as_str().unwrap_or_default();
            let message: String = message.chars().take(MAX_DIALOG_TEXT).collect();
            self.dialogs.push(json!({ "type": dialog["type"], "message": message }));
        }
        let parameters =
            json!({ "accept": true, "promptText": dialog["defaultPrompt"].as_str().unwrap_or_default() });
        self.send("Page.handleJavaScriptDialog", parameters).await.map(|_| ())
    }

    /// Takes the dialogs that were accepted so far.
    pub(super) fn take_dialogs(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.dialogs)
    }

    /// Receives messages for some time.
    pub(super) async fn listen(&mut self, time: Duration) -> Result<(), BrowserError> {
        let listening = async {
            loop {
                let message = self.next_message().await?;
                self.keep(message);
            }
        };
        tokio::time::timeout(time, listening).await.unwrap_or(Ok(()))
    }

    /// Waits until the document of this loader, or one that it redirected to, has loaded. The previous document also
    /// fires a load event if it was still loading.
    pub(super) async fn wait_for_load(&mut self, loader: &str, limit: Duration) -> Result<(), BrowserError> {
        let waiting = async {
            while !is_loaded(&self.events, loader) {
                let message = self.next_message().await?;
                self.keep(message);
            }
            Ok(())
        };
        let waited = tokio::time::timeout(limit, waiting).await;
        waited.map_err(|_| {
            BrowserError::Timeout(format!("the page was not ready after {} s", limit.as_secs()))
        })?
    }

    /// Takes the events with these names that have arrived so far.
    pub(super) fn take_events(&mut self, methods: &[&str]) -> Vec<Value> {
        let is_wanted = |event: &Value| methods.iter().any(|method| event["method"] == *method);
        let (wanted, rest): (VecDeque<Value>, VecDeque<Value>) =
            std::mem::take(&mut self.events).into_iter().partition(is_wanted);
        self.events = rest;
        wanted.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of this response.
    async fn answered(response: &str) -> Result<Vec<u8>, String> {
        let (ours, mut theirs) = tokio::io::duplex(16 * 1024);
        theirs.write_all(response.as_bytes()).await.unwrap();
        let mut stream: Stream = Box::new(ours);
        exchange(&mut stream, "GET", "/json/list").await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn response_is_read_to_its_stated_length() {
        let response = "HTTP/1.1 200 OK\r\nContent-Length:2\r\n\r\n[]HTTP/1.1 200 OK";
        assert_eq!(answered(response).await.unwrap(), b"[]");
    }

    #[tokio::test]
    async fn response_without_a_usable_length_is_an_error() {
        for (header, problem) in [
            ("Server: x", "does not say how long it is"),
            ("Content-Length: 1048577", "too large: 1048577 bytes"),
            ("Content-Length: 99999999999999999999999", "is not a number"),
            ("Content-Length: -1", "is not a number"),
        ] {
            let error = answered(&format!("HTTP/1.1 200 OK\r\n{header}\r\n\r\n[]")).await.unwrap_err();
            assert!(error.contains(problem), "{header}: {error}");
        }
    }
}
