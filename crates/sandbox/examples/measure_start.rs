//! Prints how long a sandbox takes from `create` until its guest has answered an exec of `true`, and the resources it
//! uses.
//!
//! `measure_start DIRECTORY COUNT LAUNCHER GUEST`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use protocol::{CallKey, Exec, ExecEvent, ExecUpdate, Follow, GuestClient, LinkCredentials, Program};
use sandbox::namespace::{NamespaceBackend, NamespaceConfig, Trace};
use sandbox::{Backend, Image, Isolation, Limits, SandboxId, SandboxSpec};

#[derive(Default)]
struct Times {
    create: Vec<Duration>,
    connect: Vec<Duration>,
    exec: Vec<Duration>,
    second_exec: Vec<Duration>,
    destroy: Vec<Duration>,
    total: Vec<Duration>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().context("usage: measure_start DIRECTORY COUNT LAUNCHER GUEST");
    let (directory, count) = (PathBuf::from(next()?), next()?.parse::<usize>()?);
    let mut config = NamespaceConfig::new(directory.join("state"), directory.join("run"), next()?, next()?);
    config.slots_dir = directory.join("slots");
    config.trace = if arguments.next().is_some() { Trace::On } else { Trace::Off };
    let backend = Arc::new(NamespaceBackend::new(config)?);
    let spec = SandboxSpec {
        image: Image::Host,
        isolation: Isolation::Namespaces,
        limits: Limits::default(),
        extra_ca: Default::default(),
        own_ca: None,
        labels: Default::default(),
    };
    let mut times = Times::default();
    for _ in 0..count {
        one(&backend, &spec, &mut times).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (name, mut values) in [
        ("create", times.create),
        ("connect", times.connect),
        ("exec true", times.exec),
        ("second exec", times.second_exec),
        ("destroy", times.destroy),
        ("create to answer", times.total),
    ] {
        values.sort();
        let at = |part: usize| values[(values.len() * part / 100).min(values.len() - 1)].as_secs_f64() * 1e3;
        println!("{name:<18} median {:7.2} ms  p90 {:7.2} ms  least {:7.2} ms", at(50), at(90), at(0));
    }
    together(&backend, &spec, 100).await
}

/// Starts many sandboxes at once and prints the time per sandbox.
async fn together(backend: &Arc<NamespaceBackend>, spec: &SandboxSpec, count: u32) -> Result<()> {
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (backend, spec) = (Arc::clone(backend), spec.clone());
        tasks.spawn(async move {
            let id = SandboxId::generate();
            backend.create(id, &spec).await?;
            let (client, _, _incoming) =
                GuestClient::connect(backend.connect(id).await?, LinkCredentials::new("measure", 1)).await?;
            run_true(&client, "1").await?;
            anyhow::Ok(id)
        });
    }
    let ids: Vec<_> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    println!("{count} at once: {:.2} ms each", start.elapsed().as_secs_f64() * 1e3 / f64::from(count));
    for id in ids {
        backend.destroy(id).await?;
    }
    Ok(())
}

async fn one(backend: &NamespaceBackend, spec: &SandboxSpec, times: &mut Times) -> Result<()> {
    let id = SandboxId::generate();
    let start = Instant::now();
    backend.create(id, spec).await?;
    let created = Instant::now();
    let (client, _, _incoming) =
        GuestClient::connect(backend.connect(id).await?, LinkCredentials::new("measure", 1)).await?;
    let connected = Instant::now();
    run_true(&client, "1").await?;
    let answered = Instant::now();
    run_true(&client, "2").await?;
    times.second_exec.push(answered.elapsed());
    times.create.push(created - start);
    times.connect.push(connected - created);
    times.exec.push(answered - connected);
    times.total.push(answered - start);
    let start = Instant::now();
    backend.destroy(id).await?;
    times.destroy.push(start.elapsed());
    Ok(())
}

async fn run_true(client: &GuestClient, call: &str) -> Result<()> {
    let exec = Exec {
        key: CallKey::new(call, 1),
        program: Program::Arguments(vec!["/usr/bin/true".into()]),
        environment: Default::default(),
        directory: None,
        stdin: None,
        keep_stdin_open: false,
        terminal: None,
        timeout_ms: None,
        kill_grace_ms: 1000,
    };
    let mut follower = client.exec(exec, Follow::Capped).await?;
    loop {
        if let ExecUpdate::Event(ExecEvent::Ended(_)) = follower.next().await? {
            return Ok(());
        }
    }
}
