//! An embeddings server whose vectors come from a function. Uses real HTTP on separate threads.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};

const MODEL: &str = "scripted";

/// Computes the vectors of these texts; `None` makes the server return an error.
type Vectors = dyn Fn(&[&str]) -> Option<Vec<Vec<f32>>> + Send + Sync;

/// An embeddings server for tests. It runs until the process ends.
pub struct ScriptedEmbeddings {
    address: SocketAddr,
}

impl ScriptedEmbeddings {
    /// Starts a server on a free port. Each connection has its own thread, so the function may block.
    pub fn start(
        vectors: impl Fn(&[&str]) -> Option<Vec<Vec<f32>>> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let vectors: Arc<Vectors> = Arc::new(vectors);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let vectors = Arc::clone(&vectors);
                std::thread::spawn(move || while answer(&stream, &*vectors).is_ok() {});
            }
        });
        Ok(Self { address })
    }

    /// The model name for the settings.
    #[must_use]
    pub fn name(&self) -> String {
        format!("http://{}/v1#{MODEL}", self.address)
    }
}

/// Answers one request of a connection.
fn answer(mut stream: &TcpStream, vectors: &Vectors) -> io::Result<()> {
    let (first, request) = read(stream)?;
    let texts: Option<Vec<&str>> =
        request["input"].as_array().map(|texts| texts.iter().filter_map(Value::as_str).collect());
    let (status, answer) = match texts {
        Some(texts) if first.starts_with("POST /v1/embeddings ") && request["model"] == MODEL => {
            match vectors(&texts) {
                Some(vectors) => ("200 OK", embeddings(&vectors)),
                None => ("500 Internal Server Error", json!({"error": {"message": "out of order"}})),
            }
        }
        _ => ("400 Bad Request", json!({"error": {"message": format!("{first}: {request}")}})),
    };
    let answer = answer.to_string();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json");
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len())
}

fn embeddings(vectors: &[Vec<f32>]) -> Value {
    let embedding = |(index, vector)| json!({"object": "embedding", "index": index, "embedding": vector});
    let data: Vec<Value> = vectors.iter().enumerate().map(embedding).collect();
    json!({"object": "list", "data": data, "model": MODEL, "usage": {"prompt_tokens": 1, "total_tokens": 1}})
}

/// Reads the first line of a request and its body.
fn read(stream: &TcpStream) -> io::Result<(String, Value)> {
    let mut reader = BufReader::new(stream);
    let mut line = |text: &mut String| match reader.read_line(text) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        other => other,
    };
    let mut first = String::new();
    line(&mut first)?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        line(&mut header)?;
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
        if header.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((first, serde_json::from_slice(&body)?))
}
