//! As little of an HTTP/1.1 client as load needs: one request at a time on a connection that is kept open.
//!
//! A full client would take a good part of the two processors that the server is measured on.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The most bytes of an answer's head.
const MAX_HEAD: usize = 16 << 10;

/// A connection to the server.
pub(crate) struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    /// What was read and not yet used.
    buffer: Vec<u8>,
}

/// An answer whose body may still come.
struct Head {
    status: u16,
    body: Body,
}

enum Body {
    Length(usize),
    Chunks,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, address, buffer: Vec::with_capacity(8192) })
    }

    /// The bytes of a POST with a JSON body, to be sent many times.
    pub(crate) fn post_bytes(&self, path: &str, body: &str) -> Vec<u8> {
        let (host, length) = (self.address, body.len());
        let head = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n");
        format!("{head}Content-Length: {length}\r\n\r\n{body}").into_bytes()
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<(u16, Vec<u8>)> {
        self.stream.write_all(request).await?;
        let head = self.read_head().await?;
        let Body::Length(length) = head.body else { bail!("the answer has no length") };
        while self.buffer.len() < length {
            self.read_more().await?;
        }
        Ok((head.status, self.buffer.drain(..length).collect()))
    }

    /// Sends a GET and reads the whole answer.
    pub(crate) async fn get(&mut self, path: &str) -> Result<(u16, Vec<u8>)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        self.ask(request.as_bytes()).await
    }

    /// Follows server-sent events until one of the given texts has come; gives its place in the list.
    /// The connection is of no use afterwards.
    pub(crate) async fn follow_until(mut self, path: &str, texts: &[&str]) -> Result<usize> {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n\r\n", self.address);
        self.stream.write_all(request.as_bytes()).await?;
        let head = self.read_head().await?;
        ensure!(head.status == 200 && matches!(head.body, Body::Chunks), "{path} answers {}", head.status);
        loop {
            // An event is sent as one chunk or several whole ones, so its text is never cut.
            let found = texts.iter().position(|text| find(&self.buffer, text.as_bytes()).is_some());
            if let Some(found) = found {
                return Ok(found);
            }
            self.read_more().await?;
        }
    }

    async fn read_head(&mut self) -> Result<Head> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end + 4;
            }
            ensure!(self.buffer.len() < MAX_HEAD, "the head of the answer has no end");
            self.read_more().await?;
        };
        let head: Vec<u8> = self.buffer.drain(..end).collect();
        let head = String::from_utf8_lossy(&head);
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        Ok(Head {
            status: status.context("the answer has no status")?,
            body: length.map_or(Body::Chunks, Body::Length),
        })
    }

    async fn read_more(&mut self) -> Result<()> {
        let read = self.stream.read_buf(&mut self.buffer).await?;
        ensure!(read > 0, "the server has closed the connection");
        Ok(())
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}
