//! What checking a key costs per request, and what wrong keys cost the server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Stage;
use crate::http::Connection;
use crate::measure::{Samples, milliseconds};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::server::Server;

/// The number of keys of the server.
const KEYS: usize = 1000;
/// Requests per measurement: a single one is shorter than the scheduler's noise.
const BATCH: u32 = 50;
/// The cheapest request that requires a key: nearly all of its time is the round trip.
const PATH: &str = "/v1/defaults";

/// Measures both.
pub(crate) async fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    let open = Server::start(stage, "").await?;
    let keyed = Server::start(stage, "").await?;
    let measured = on(stage, &open, &keyed).await;
    open.remove(stage).await?;
    keyed.remove(stage).await?;
    measured
}

async fn on(stage: &Stage, open: &Server, keyed: &Server) -> Result<Vec<Figure>> {
    let key = make_keys(keyed).await?;
    let mut without = RequestLoop::new(open, None).await?;
    let mut with = RequestLoop::new(keyed, Some(&key)).await?;
    let wrong = format!("caisson_{}", "0".repeat(64));
    let mut wrongly = RequestLoop::new(keyed, Some(&wrong)).await?;
    let (mut plain, mut asked, mut refused, mut costs, mut rates) =
        (Samples::default(), Samples::default(), Samples::default(), Samples::default(), Samples::default());
    for run in 0..=stage.plan.short_runs {
        let (one, other) = (without.batch(200).await?, with.batch(200).await?);
        let no = wrongly.batch(401).await?;
        // The first run opens connections and files.
        if run > 0 {
            plain.add(milliseconds(one));
            asked.add(milliseconds(other));
            refused.add(milliseconds(no));
            costs.add(milliseconds(other) - milliseconds(one));
            rates.add(1.0 / no.as_secs_f64());
        }
    }
    let beside = |what: &str, samples: &Samples, against: Option<&Samples>| Baseline {
        what: what.to_owned(),
        summary: samples.summary(),
        against: against.map(Samples::summary),
        target: Target::None,
    };
    Ok(vec![
        Figure {
            name: "access",
            what: format!(
                "a key check: a request to a server with {KEYS} keys, minus the same to one without"
            ),
            unit: Unit::Milliseconds,
            ours: costs.summary(),
            target: Target::AtMost(0.1),
            beside: vec![beside(
                "the whole request to a server without keys; the ratio is that of the whole requests",
                &plain,
                Some(&asked),
            )],
            notes: vec![format!(
                "GET {PATH} on an open connection, in turns, {BATCH} requests a measurement; with a key it took {:.3} ms, with a wrong one {:.3} ms",
                asked.summary().median,
                refused.summary().median
            )],
        },
        Figure {
            name: "access-wrong",
            what: "wrong keys refused, one after another on one connection".to_owned(),
            unit: Unit::PerSecond,
            ours: rates.summary_of_rates(),
            target: Target::AtLeast(1000.0),
            beside: Vec::new(),
            notes: Vec::new(),
        },
    ])
}

/// One request, sent repeatedly.
struct RequestLoop {
    connection: Connection,
    request: Vec<u8>,
}

impl RequestLoop {
    async fn new(server: &Server, key: Option<&str>) -> Result<Self> {
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let request = format!("GET {PATH} HTTP/1.1\r\nHost: {}\r\n{key}\r\n", server.address).into_bytes();
        Ok(Self { connection: Connection::open(server.address).await?, request })
    }

    /// The average duration of a request in a batch.
    async fn batch(&mut self, expected: u16) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..BATCH {
            let (status, _) = self.connection.ask(&self.request).await?;
            ensure!(status == expected, "{PATH} answers {status}");
        }
        Ok(start.elapsed() / BATCH)
    }
}

/// Creates all keys; returns the secret of the last one.
async fn make_keys(server: &Server) -> Result<String> {
    let mut connection = Connection::open(server.address).await?;
    let first = connection.post_bytes("/v1/keys", r#"{"name": "root", "role": "admin"}"#);
    let admin = secret(&connection.ask(&first).await?)?;
    let mut last = admin.clone();
    for number in 1..KEYS {
        let body = format!(
            r#"{{"name": "key-{number}", "role": "operator", "limits": {{"requests_per_second": 1000000}}}}"#
        );
        let text = String::from_utf8(connection.post_bytes("/v1/keys", &body))?;
        let text = text.replacen("\r\n", &format!("\r\nAuthorization: Bearer {admin}\r\n"), 1);
        last = secret(&connection.ask(text.as_bytes()).await?)?;
    }
    Ok(last)
}

fn secret((status, body): &(u16, Vec<u8>)) -> Result<String> {
    ensure!(*status == 201, "making a key answers {status}");
    let made: Value = serde_json::from_slice(body)?;
    made["secret"].as_str().map(ToOwned::to_owned).context("the answer has no secret")
}
