//! Outgoing connections of a sandbox compared with a plain CONNECT proxy: throughput, connection setup, memory of
//! many connections.
//!
//! Both use the same Python client: inside a sandbox through the guest, the link and the egress policy, and as a
//! plain process through tinyproxy on loopback. This process is the server they connect to.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::Stage;
use crate::http::Connection;
use crate::measure::Samples;
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::proportional_bytes;
use crate::server::{Server, short_folder};

const SETTINGS: &str = "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\n";
/// The size of one download.
const DOWNLOAD_BYTES: u64 = 128 * 1024 * 1024;
/// The number of concurrent connections, half of them in each of two sandboxes, because one sandbox may have at most
/// 512.
const OPEN: usize = 1000;
const MEGABYTE: f64 = 1e6;
const PATIENCE: Duration = Duration::from_secs(120);

/// The client. `download` prints the milliseconds for the requested bytes. `setup` prints the milliseconds until a
/// tunnel is established, for each of `count` tunnels, and `direct` the same for plain connections. `hold` keeps
/// `count` tunnels open.
const CLIENT: &str = r#"
import json, socket, sys, time
what, proxy, server, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
def tunnel():
    s = socket.create_connection(("127.0.0.1", proxy))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (server, server))
    head = b""
    while b"\r\n\r\n" not in head:
        piece = s.recv(4096)
        assert piece, head
        head += piece
    assert b" 200" in head.split(b"\r\n")[0], head
    return s
def timed(make):
    start = time.perf_counter()
    s = make()
    took = (time.perf_counter() - start) * 1000
    s.close()
    return took
if what == "download":
    s, buffer, left = tunnel(), bytearray(1 << 20), count
    start = time.perf_counter()
    s.sendall(count.to_bytes(8, "big"))
    while left:
        got = s.recv_into(buffer)
        assert got
        left -= got
    print(json.dumps([(time.perf_counter() - start) * 1000]))
elif what == "setup":
    print(json.dumps([timed(tunnel) for _ in range(count)]))
elif what == "direct":
    print(json.dumps([timed(lambda: socket.create_connection(("127.0.0.1", server))) for _ in range(count)]))
else:
    held = [tunnel() for _ in range(count)]
    print("[]", flush=True)
    time.sleep(3600)
"#;

/// Alternates: a sandbox, tinyproxy.
pub(crate) async fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    let origin = serve_bytes().await?;
    let other = Tinyproxy::start().await?;
    let server = Server::start(stage, SETTINGS).await?;
    let measured = measure_all(stage, &server, origin, &other).await;
    server.remove(stage).await?;
    drop(other);
    measured
}

async fn measure_all(
    stage: &Stage,
    server: &Server,
    origin: SocketAddr,
    other: &Tinyproxy,
) -> Result<Vec<Figure>> {
    let mut api = Connection::open(server.address).await?;
    let inside = make_sandbox(&mut api).await?;
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..stage.plan.runs {
        add(&mut ours, run_inside(&mut api, &inside, "download", origin, DOWNLOAD_BYTES).await?);
        add(&mut theirs, run_here("download", other.port, origin, DOWNLOAD_BYTES).await?);
    }
    let (mut above, mut setup, mut plain) = (Samples::default(), Samples::default(), Samples::default());
    let count = stage.plan.short_runs as u64;
    let direct = run_here("direct", 0, origin, count).await?;
    let through = run_inside(&mut api, &inside, "setup", origin, count).await?;
    add(&mut plain, run_here("setup", other.port, origin, count).await?);
    for (through, direct) in through.iter().zip(&direct) {
        above.add(through - direct);
    }
    add(&mut setup, through);
    let memory = measure_memory(server, &mut api, &inside, origin).await?;
    Ok(vec![
        Figure {
            name: "egress",
            what: format!("{} MiB out of a CONNECT tunnel, from inside a sandbox", DOWNLOAD_BYTES >> 20),
            unit: Unit::Milliseconds,
            ours: ours.summary(),
            target: Target::None,
            beside: vec![Baseline {
                what: "the same client as a plain process, through tinyproxy".into(),
                summary: theirs.summary(),
                against: None,
                target: Target::TimesSlower(2.0),
            }],
            notes: vec!["ours passes the guest, the link and the policy, and is counted and logged".into()],
        },
        Figure {
            name: "egress-setup",
            what: "until a tunnel stands, from inside a sandbox, minus a plain connection".into(),
            unit: Unit::Milliseconds,
            ours: above.summary(),
            target: Target::AtMost(1.0),
            beside: vec![Baseline {
                what: "a tunnel through tinyproxy from a plain process; the ratio is that of whole tunnels"
                    .into(),
                summary: plain.summary(),
                against: Some(setup.summary()),
                target: Target::None,
            }],
            notes: vec!["each is in the job's log on disk before the first byte passes".into()],
        },
        Figure {
            name: "egress-memory",
            what: format!("memory of {OPEN} open connections: growth of the server's and the guests' PSS"),
            unit: Unit::Megabytes,
            ours: memory.summary(),
            target: Target::AtMost(50.0),
            beside: Vec::new(),
            notes: vec!["two sandboxes with half of them each".into()],
        },
    ])
}

fn add(samples: &mut Samples, values: Vec<f64>) {
    values.into_iter().for_each(|value| samples.add(value));
}

async fn measure_memory(
    server: &Server,
    api: &mut Connection,
    first: &str,
    origin: SocketAddr,
) -> Result<Samples> {
    let second = make_sandbox(api).await?;
    let sandboxes = [first, second.as_str()];
    let before = memory_of(server)?;
    for below in sandboxes {
        // A background process holds the connections, because they must outlive the exec.
        let command = format!(
            "cat > /tmp/client.py && (setsid python3 /tmp/client.py hold 3128 {} {} > /tmp/held 2>&1 &) && \
             until [ -s /tmp/held ]; do sleep 0.05; done; cat /tmp/held",
            origin.port(),
            OPEN / 2
        );
        let body = json!({"command": command, "stdin": CLIENT, "timeout_s": PATIENCE.as_secs()});
        let answer = ask(api, &format!("{below}/exec"), &body).await?;
        ensure!(answer["stdout"] == "[]\n", "the connections do not stand: {answer}");
    }
    let mut samples = Samples::default();
    samples.add((memory_of(server)? - before) / MEGABYTE);
    Ok(samples)
}

/// The memory of the server and of its sandboxes' processes: launchers and guests.
fn memory_of(server: &Server) -> Result<f64> {
    let mut total = proportional_bytes(server.pid()?)?;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with("caisson-guest") || name.starts_with("caisson-launch") {
            total += proportional_bytes(pid).unwrap_or_default();
        }
    }
    Ok(total)
}

async fn make_sandbox(api: &mut Connection) -> Result<String> {
    let wanted = json!({"image": "host", "egress": "open"});
    let made = ask(api, "/v1/sandboxes", &wanted).await?;
    Ok(format!("/v1/sandboxes/{}", made["sandbox_id"].as_str().context("no sandbox")?))
}

async fn run_inside(
    api: &mut Connection,
    below: &str,
    what: &str,
    origin: SocketAddr,
    count: u64,
) -> Result<Vec<f64>> {
    let argv = ["python3", "-c", CLIENT, what, "3128", &origin.port().to_string(), &count.to_string()];
    let body = json!({"argv": argv, "timeout_s": PATIENCE.as_secs()});
    let answer = ask(api, &format!("{below}/exec"), &body).await?;
    serde_json::from_str(answer["stdout"].as_str().unwrap_or_default())
        .with_context(|| format!("no times: {answer}"))
}

async fn run_here(what: &str, proxy: u16, origin: SocketAddr, count: u64) -> Result<Vec<f64>> {
    // The same interpreter that a sandbox on the host image uses.
    let output = Command::new("/usr/bin/python3")
        .args(["-c", CLIENT, what, &proxy.to_string(), &origin.port().to_string(), &count.to_string()])
        .output()
        .await
        .context("running /usr/bin/python3")?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no times: {}", String::from_utf8_lossy(&output.stderr)))
}

async fn ask(connection: &mut Connection, path: &str, body: &Value) -> Result<Value> {
    let request = connection.post_bytes(path, &body.to_string());
    let (status, answer) = connection.ask(&request).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    ensure!((200..300).contains(&status), "{path}: {answer}");
    Ok(answer)
}

/// A server that sends as many bytes as the client's eight-byte request says.
async fn serve_bytes() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(send_bytes(stream));
        }
    });
    Ok(address)
}

async fn send_bytes(mut stream: TcpStream) -> std::io::Result<()> {
    let mut left = stream.read_u64().await?;
    let piece = vec![7; 256 * 1024];
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(piece.len()).min(piece.len());
        stream.write_all(&piece[..count]).await?;
        left -= count as u64;
    }
    Ok(())
}

/// A plain CONNECT proxy on loopback; stopped on drop.
struct Tinyproxy {
    port: u16,
    _process: Child,
    _folder: tempfile::TempDir,
}

impl Tinyproxy {
    async fn start() -> Result<Self> {
        let folder = short_folder()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = folder.path().join("tinyproxy.conf");
        let mut file = std::fs::File::create(&config)?;
        writeln!(file, "Port {port}\nListen 127.0.0.1\nMaxClients 1000\nTimeout 600\nLogLevel Critical")?;
        let process = Command::new("tinyproxy")
            .arg("-d")
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("starting tinyproxy; install the package tinyproxy-bin")?;
        let started = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, started).await.context("tinyproxy does not listen")?;
        Ok(Self { port, _process: process, _folder: folder })
    }
}
