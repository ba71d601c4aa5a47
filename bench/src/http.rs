//! A minimal HTTP/1.1 client for load tests: one request at a time on a keep-alive connection.
//!
//! A full client would use a significant part of the two CPUs that the server is measured on.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The maximum size of a response head, in bytes.
const MAX_HEAD: usize = 16 << 10;

pub(crate) struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    /// Bytes read but not consumed yet.
    buffer: Vec<u8>,
}

/// A response whose body may still be arriving.
struct Head {
    status: u16,
    body: Body,
}

enum Body {
    Length(usize),
    Chunks,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, address, buffer: Vec::with_capacity(8192) })
    }

    /// The bytes of a POST with a JSON body, for sending repeatedly.
    pub(crate) fn post_bytes(&self, path: &str, body: &str) -> Vec<u8> {
        let (host, length) = (self.address, body.len());
        let head = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n");
        format!("{head}Content-Length: {length}\r\n\r\n{body}").into_bytes()
    }

    /// Sends a request and reads the whole response.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<(u16, Vec<u8>)> {
        self.stream.write_all(request).await?;
        let head = self.read_head().await?;
        let Body::Length(length) = head.body else { bail!("the answer has no length") };
        while self.buffer.len() < length {
            self.read_more().await?;
        }
        Ok((head.status, self.buffer.drain(..length).collect()))
    }

    /// Sends a GET and reads the whole response.
    pub(crate) async fn get(&mut self, path: &str) -> Result<(u16, Vec<u8>)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        self.ask(request.as_bytes()).await
    }

    /// Follows server-sent events until one of the given texts appears; returns its index in the list. The connection
    /// cannot be used afterwards.
    pub(crate) async fn follow_until(mut self, path: &str, texts: &[&str]) -> Result<usize> {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n\r\n", self.address);
        self.stream.write_all(request.as_bytes()).await?;
        let head = self.read_head().await?;
        ensure!(head.status == 200 && matches!(head.body, Body::Chunks), "{path} answers {}", head.status);
        loop {
            // The server never splits an event over a partial chunk, so its text is contiguous.
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
