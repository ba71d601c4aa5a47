//! A Python cell in a warm kernel through the API, compared with Python's own client on the same kernel.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::Stage;
use crate::http::Connection;
use crate::measure::{Samples, milliseconds};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::server::Server;

/// The target: the maximum ratio of our time to the direct client's time.
const AT_MOST: f64 = 1.5;
/// The number of cells in a row, so that the client's start is not measured.
const CELLS: usize = 20;
/// Runs cells over ZMQ and prints how long each took, in milliseconds.
const DIRECT: &str = r#"
import json, sys, time
from jupyter_client import BlockingKernelClient
from jupyter_core.paths import jupyter_runtime_dir
client = BlockingKernelClient(connection_file=jupyter_runtime_dir() + "/kernel-caisson-python3.json")
client.load_connection_file(); client.start_channels(); client.wait_for_ready(timeout=20)
def cell():
    start = time.perf_counter()
    request = client.execute("x + 1")
    while True:
        heard = client.get_iopub_msg(timeout=20)
        if heard["parent_header"].get("msg_id") == request and heard["content"].get("execution_state") == "idle": break
    while client.get_shell_msg(timeout=20)["parent_header"].get("msg_id") != request: pass
    return (time.perf_counter() - start) * 1000
for _ in range(3): cell()
print(json.dumps([cell() for _ in range(int(sys.argv[1]))]))
"#;

/// Alternates: cells through the API, cells by Python's client in the same sandbox.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let images = stage.images.as_ref().context("--images with the image `default` is needed for this")?;
    let server = Server::start(stage, &format!("images = {:?}\n", images.display().to_string())).await?;
    let (mut ours, mut direct) = (Samples::default(), Samples::default());
    let rounds = (stage.plan.short_runs / CELLS).max(1);
    let done = measure_all(server.address, rounds, &mut ours, &mut direct).await;
    server.remove(stage).await?;
    done?;
    Ok(Figure {
        name: "cell",
        what: "`x + 1` in a warm Python kernel through the API".into(),
        unit: Unit::Milliseconds,
        ours: ours.summary(),
        target: Target::None,
        beside: vec![Baseline {
            what: "the same by jupyter_client over ZMQ in the same sandbox".into(),
            summary: direct.summary(),
            against: None,
            target: Target::TimesSlower(AT_MOST),
        }],
        notes: vec!["ours is journalled, in the job's log on disk, and in a notebook".into()],
    })
}

async fn measure_all(
    address: SocketAddr,
    rounds: usize,
    ours: &mut Samples,
    direct: &mut Samples,
) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let made = ask(&mut connection, "/v1/sandboxes", &json!({"image": "default"})).await?;
    let below = format!("/v1/sandboxes/{}", made["sandbox_id"].as_str().context("no sandbox")?);
    let code = format!("{below}/code");
    ask(&mut connection, &code, &json!({"code": "x = 1"})).await?;
    for _ in 0..rounds {
        for _ in 0..CELLS {
            let start = Instant::now();
            let answer = ask(&mut connection, &code, &json!({"code": "x + 1"})).await?;
            ours.add(milliseconds(start.elapsed()));
            ensure!(answer["displays"][0]["text"] == "2", "{answer}");
        }
        let argv = ["/opt/jupyter/bin/python", "-c", DIRECT, &CELLS.to_string()];
        let answer = ask(&mut connection, &format!("{below}/exec"), &json!({"argv": argv})).await?;
        let took: Vec<f64> = serde_json::from_str(answer["stdout"].as_str().unwrap_or_default())
            .with_context(|| format!("no times: {answer}"))?;
        took.into_iter().for_each(|milliseconds| direct.add(milliseconds));
    }
    Ok(())
}

async fn ask(connection: &mut Connection, path: &str, body: &Value) -> Result<Value> {
    let request = connection.post_bytes(path, &body.to_string());
    let (status, answer) = connection.ask(&request).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    ensure!((200..300).contains(&status), "{path}: {answer}");
    Ok(answer)
}
