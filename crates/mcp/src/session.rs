//! A connection to a server: initialization, tool list, calls.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use egress::{Proxy, Upstream};
use rmcp::RoleClient;
use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest, Implementation,
    ListToolsRequest, PaginatedRequestParams, ProtocolVersion, RequestMetaObject, ServerResult,
};
use rmcp::service::{
    NotificationContext, Peer, PeerRequestOptions, RunningServiceCancellationToken, ServiceError, ServiceExt,
    serve_directly,
};
use rmcp::transport::{IntoTransport, Transport};
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::error::McpError;
use crate::http::{HttpClient, transport};
use crate::library_errors::{initialization_error, request_error};
use crate::outcome::{ToolOutcome, short};
use crate::spec::Headers;
use crate::stdio::{CALL_FIELD, LineTransport, RecoveredAnswers};

/// The maximum number of pages of a tool list.
const MAX_PAGES: usize = 100;
/// The maximum number of tools per server.
const MAX_TOOLS: usize = 2000;

/// Handles notifications from a server.
struct Listener {
    changed: Arc<Notify>,
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("caisson", env!("CARGO_PKG_VERSION"));
        let mut info = ClientConfig::new(ClientCapabilities::default(), us);
        info.protocol_version = ProtocolVersion::LATEST_WITH_INITIALIZE;
        info
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }
}

/// A connection to a server. Dropping it closes the connection; a process keeps running.
pub struct Session {
    peer: Peer<RoleClient>,
    changed: Arc<Notify>,
    closed: watch::Receiver<bool>,
    cancel: Mutex<Option<RunningServiceCancellationToken>>,
    recovered: Option<RecoveredAnswers>,
}

impl Session {
    /// Initializes a connection to a process that was just started.
    ///
    /// # Errors
    /// The server does not complete the initialization.
    pub async fn initialize(
        lines: LineTransport,
        recovered: RecoveredAnswers,
        limit: Duration,
    ) -> Result<Self, McpError> {
        Self::begin(lines, Some(recovered), limit).await
    }

    /// Resumes a connection to a process that is already initialized.
    #[must_use]
    pub fn resume(lines: LineTransport, recovered: RecoveredAnswers) -> Self {
        let changed = Arc::new(Notify::new());
        let listener = Listener { changed: Arc::clone(&changed) };
        let service = serve_directly::<RoleClient, _, _, _, _>(listener, lines, None);
        let (peer, cancel) = (service.peer().clone(), service.cancellation_token());
        let closed = watch_end(service.waiting());
        Self { peer, changed, closed, cancel: Mutex::new(Some(cancel)), recovered: Some(recovered) }
    }

    /// Connects to an external server through the job's egress proxy.
    ///
    /// # Errors
    /// The server is not allowed or not reachable, or does not complete the initialization.
    pub async fn connect(
        url: &str,
        headers: &Headers,
        proxy: Proxy,
        upstream: Upstream,
        call: String,
        limit: Duration,
    ) -> Result<Self, McpError> {
        let http_client = HttpClient::new(proxy, upstream, headers.clone(), call);
        let last_error = http_client.last_error();
        Self::begin(transport(http_client, url), None, limit).await.map_err(|error| {
            match (error, last_error.last()) {
                // The proxy's own message is clearer than the resulting protocol error.
                (McpError::Initialization(_) | McpError::ConnectionClosed(_), Some(last_error)) => {
                    McpError::Initialization(last_error)
                }
                (error, _) => error,
            }
        })
    }

    async fn begin<T, E, A>(
        transport: T,
        recovered: Option<RecoveredAnswers>,
        limit: Duration,
    ) -> Result<Self, McpError>
    where
        T: IntoTransport<RoleClient, E, A> + Transport<RoleClient>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let changed = Arc::new(Notify::new());
        let listener = Listener { changed: Arc::clone(&changed) };
        let service = match timeout(limit, listener.serve(transport)).await {
            Ok(Ok(service)) => service,
            Ok(Err(error)) => return Err(initialization_error(&error)),
            Err(_) => return Err(McpError::Timeout { what: "answer the greeting", limit }),
        };
        let (peer, cancel) = (service.peer().clone(), service.cancellation_token());
        let closed = watch_end(service.waiting());
        Ok(Self { peer, changed, closed, cancel: Mutex::new(Some(cancel)), recovered })
    }

    /// The server's tools, as received.
    ///
    /// # Errors
    /// The server does not list them, or not in time.
    pub async fn list(&self, limit: Duration) -> Result<Vec<Value>, McpError> {
        let listing = async {
            let mut tools = Vec::new();
            let mut cursor = None;
            for _ in 0..MAX_PAGES {
                let page = PaginatedRequestParams::default().with_cursor(cursor);
                let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(page));
                let result = self.peer.send_request(request).await.map_err(|error| request_error(&error))?;
                let mut result = value_of(&result);
                let Value::Array(page) = result["tools"].take() else {
                    return Err(McpError::InvalidResponse(format!(
                        "no list of tools in {}",
                        short(&result.to_string())
                    )));
                };
                tools.extend(page);
                cursor = result["nextCursor"].as_str().map(ToOwned::to_owned);
                if cursor.is_none() || tools.len() >= MAX_TOOLS {
                    break;
                }
            }
            tools.truncate(MAX_TOOLS);
            Ok(tools)
        };
        let mut closed = self.closed.clone();
        tokio::select! {
            listed = timeout(limit, listing) => match listed {
                Ok(listed) => listed,
                Err(_) => Err(McpError::Timeout { what: "list its tools", limit }),
            },
            _ = closed.wait_for(|closed| *closed) => Err(McpError::ConnectionClosed("it has ended".into())),
        }
    }

    /// Calls a tool.
    ///
    /// # Errors
    /// There is no answer; how far the call got is unknown.
    pub async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        call: &str,
        limit: Duration,
    ) -> Result<ToolOutcome, McpError> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let mut meta = RequestMetaObject::default();
        meta.0.0.insert(CALL_FIELD.into(), call.into());
        let options = PeerRequestOptions::with_timeout(limit).with_meta(meta);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let calling = async {
            match self.peer.send_request_with_option(request, options).await {
                Ok(handle) => handle.await_response().await,
                Err(error) => Err(error),
            }
        };
        let mut closed = self.closed.clone();
        let answered = tokio::select! {
            // An answer that came before the connection ended counts.
            biased;
            answered = calling => answered,
            _ = closed.wait_for(|closed| *closed) => Err(ServiceError::TransportClosed),
        };
        let error = match answered {
            Ok(result) => return read(&value_of(&result)),
            Err(ServiceError::Timeout { .. }) => {
                return Err(McpError::Timeout { what: "answer the call", limit });
            }
            Err(error) => error,
        };
        match (request_error(&error), error) {
            // A rejection by the server is a result.
            (McpError::ProtocolError(_), ServiceError::McpError(error)) => {
                Ok(ToolOutcome { text: error.message.to_string(), is_error: true, ..ToolOutcome::default() })
            }
            (error, _) => {
                // The owner connects again.
                self.close();
                Err(error)
            }
        }
    }

    /// Waits for the answer to a call that an earlier connection to the same process made.
    ///
    /// # Errors
    /// There is no answer in time, or the process has exited.
    pub async fn recover(&self, call: &str, limit: Duration) -> Result<ToolOutcome, McpError> {
        let Some(recovered) = &self.recovered else {
            return Err(McpError::ConnectionClosed("the connection over which it was made".into()));
        };
        let mut closed = self.closed.clone();
        let answer = tokio::select! {
            answer = recovered.answer(call) => answer,
            _ = closed.wait_for(|closed| *closed) => return Err(McpError::ConnectionClosed("it has ended".into())),
            () = tokio::time::sleep(limit) => return Err(McpError::Timeout { what: "answer the call", limit }),
        };
        match answer["error"]["message"].as_str() {
            Some(message) => {
                Ok(ToolOutcome { text: message.to_owned(), is_error: true, ..ToolOutcome::default() })
            }
            None => read(&answer["result"]),
        }
    }

    /// Returns when the tool list has changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns when the connection is closed.
    pub async fn closed(&self) {
        let _ = self.closed.clone().wait_for(|closed| *closed).await;
    }

    /// Closes the connection; a process keeps running.
    pub fn close(&self) {
        if let Some(cancel) = self.cancel.lock().unwrap_or_else(PoisonError::into_inner).take() {
            cancel.cancel();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

fn watch_end<T: Send>(waiting: impl Future<Output = T> + Send + 'static) -> watch::Receiver<bool> {
    let (sender, closed) = watch::channel(false);
    drop(tokio::spawn(async move {
        waiting.await;
        sender.send_replace(true);
    }));
    closed
}

fn value_of(result: &ServerResult) -> Value {
    serde_json::to_value(result).unwrap_or_default()
}

fn read(result: &Value) -> Result<ToolOutcome, McpError> {
    ToolOutcome::read(result).map_err(McpError::InvalidResponse)
}
