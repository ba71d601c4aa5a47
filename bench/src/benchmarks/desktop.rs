//! The desktop: the time from first use until VNC answers, its memory, and the time of a screenshot.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Stage;
use crate::http::Connection;
use crate::measure::{Samples, milliseconds, settle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::server::Server;

const SANDBOX: &str = r#"{"image":"default"}"#;
/// Sums the proportional memory (PSS) of the desktop's processes, in kilobytes.
const MEMORY: &str =
    "for p in $(pidof Xvnc icewm); do grep ^Pss: /proc/$p/smaps_rollup; done | awk '{s+=$2} END {print s}'";

#[derive(Default)]
struct Measured {
    start: Samples,
    memory: Samples,
    picture: Samples,
    scrot: Samples,
    bytes: usize,
}

/// Measures new sandboxes one after another; alternates between screenshots and `scrot`.
pub(crate) async fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    let images = stage.images.as_ref().context("--images with the image `default` is needed for this")?;
    let server = Server::start(stage, &format!("images = {:?}\n", images.display().to_string())).await?;
    let mut measured = Measured::default();
    let mut done = Ok(());
    for _ in 0..stage.plan.runs {
        done =
            measure_one(server.address, &mut measured, stage.plan.short_runs / stage.plan.runs.max(1)).await;
        if done.is_err() {
            break;
        }
    }
    server.remove(stage).await?;
    done?;
    Ok(describe(&measured))
}

async fn measure_one(address: SocketAddr, measured: &mut Measured, pictures: usize) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let (_, made) = ask(&mut connection, "/v1/sandboxes", SANDBOX).await?;
    let id = made["sandbox_id"].as_str().context("no sandbox")?.to_owned();
    let below = format!("/v1/sandboxes/{id}");
    // Warm-up: the first exec of a sandbox is not part of this measurement.
    exec(&mut connection, &below, "true").await?;
    let start = Instant::now();
    greet(address, &below).await?;
    measured.start.add(milliseconds(start.elapsed()));
    settle().await;
    let used = exec(&mut connection, &below, MEMORY).await?;
    let kilobytes: f64 = used.trim().parse().with_context(|| format!("`{used}` is no number"))?;
    measured.memory.add(kilobytes * 1024.0 / 1e6);
    for _ in 0..pictures.max(1) {
        let start = Instant::now();
        let (status, png) = connection.get(&format!("{below}/screenshot")).await?;
        measured.picture.add(milliseconds(start.elapsed()));
        ensure!(status == 200 && png.starts_with(b"\x89PNG"), "no picture: {status}");
        measured.bytes = png.len();
        let start = Instant::now();
        exec(&mut connection, &below, "DISPLAY=:1 scrot --overwrite /tmp/picture.png").await?;
        measured.scrot.add(milliseconds(start.elapsed()));
    }
    let request = format!("DELETE {below} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n");
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let _ = stream.read(&mut [0u8; 64]).await?;
    Ok(())
}

async fn ask(connection: &mut Connection, path: &str, body: &str) -> Result<(u16, Value)> {
    let request = connection.post_bytes(path, body);
    let (status, answer) = connection.ask(&request).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    ensure!((200..300).contains(&status), "{path}: {answer}");
    Ok((status, answer))
}

async fn exec(connection: &mut Connection, below: &str, command: &str) -> Result<String> {
    let body = json!({ "command": command }).to_string();
    let (_, answer) = ask(connection, &format!("{below}/exec"), &body).await?;
    ensure!(answer["exit_code"] == 0, "{command}: {answer}");
    Ok(answer["stdout"].as_str().unwrap_or_default().to_owned())
}

/// Opens the desktop's WebSocket and waits for the first VNC message; by then a window manager runs.
async fn greet(address: SocketAddr, below: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "GET {below}/desktop/socket HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut heard = Vec::new();
    while !heard.windows(4).any(|window| window == b"RFB ") {
        ensure!(stream.read_buf(&mut heard).await? > 0, "refused: {}", String::from_utf8_lossy(&heard));
    }
    Ok(())
}

fn describe(measured: &Measured) -> Vec<Figure> {
    let start = Figure {
        name: "desktop",
        what: "first use of the desktop until VNC answers and there is a window manager".into(),
        unit: Unit::Milliseconds,
        ours: measured.start.summary(),
        target: Target::AtMost(1000.0),
        beside: Vec::new(),
        notes: vec!["over HTTP, in a sandbox that has run one command; no browser".into()],
    };
    let memory = Figure {
        name: "desktop-memory",
        what: "memory of the desktop: PSS of X server and window manager".into(),
        unit: Unit::Megabytes,
        ours: measured.memory.summary(),
        target: Target::AtMost(120.0),
        beside: Vec::new(),
        notes: Vec::new(),
    };
    let picture = Figure {
        name: "screenshot",
        what: "a picture of the whole screen (1280x800) through the API".into(),
        unit: Unit::Milliseconds,
        ours: measured.picture.summary(),
        target: Target::AtMost(15.0),
        beside: vec![Baseline {
            what: "`scrot` in the same sandbox, through an exec of the API, its file not fetched".into(),
            summary: measured.scrot.summary(),
            against: None,
            target: Target::TimesFaster(10.0),
        }],
        notes: vec![format!("{} kB of PNG", measured.bytes / 1000)],
    };
    vec![start, memory, picture]
}
