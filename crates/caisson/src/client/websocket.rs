//! WebSockets of a server.

use anyhow::{Context, Result};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use super::http_client::{ByteStream, Client, problem};
use crate::config::client_environment;

/// A WebSocket of a server.
pub(crate) type Socket = WebSocketStream<Box<dyn ByteStream>>;

/// Opens the WebSocket at a path.
pub(crate) async fn connect(client: &Client, path: &str) -> Result<Socket> {
    let stream = client.connect().await?;
    let mut url = format!("{}{path}", client.url().replacen("http", "ws", 1));
    if let Some(token) = client_environment::takeover_token() {
        url += &format!("{}takeover={token}", if path.contains('?') { '&' } else { '?' });
    }
    let mut request = url.into_client_request().context("preparing the stream")?;
    if let Some(key) = client.key() {
        request.headers_mut().insert("authorization", key.clone());
    }
    match tokio_tungstenite::client_async(request, stream).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(response)) => {
            let body = response.body().clone().unwrap_or_default();
            Err(problem(response.status(), &body))
        }
        Err(error) => Err(error).context("opening the stream"),
    }
}
