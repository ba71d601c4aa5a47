//! Keeps one MCP server of a job connected: starts it, reconnects to it after a server restart, lists its tools, and
//! restarts it a few times with growing delays if it dies. An MCP server that does not answer blocks nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use egress::{Proxy, Upstream};
use job::{CallRef, EventBody, JobSpec, McpChange, McpState};
use mcp::{Headers, Reach, ServerSpec, Session, ToolList};
use protocol::{CallKey, CallStatus, Exec, Program};
use tokio::time::{Instant, sleep, timeout};

use super::process::{self, ConnectMode, ExitReason, Guest, reach};
use super::server_state::ServerState;
use crate::driver::environment as job_environment;
use crate::error::OrchestratorError;
use crate::recorder::Recorder;

/// How many times to restart a server, and how long it must have run for the count to start over.
const MAX_RESTARTS: u32 = 5;
const STABLE_AFTER: Duration = Duration::from_secs(120);
/// Delay before the first restart; it doubles each time.
const FIRST_RESTART_DELAY: Duration = Duration::from_millis(500);
/// How long to wait for a process to be killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the exit status of a process may arrive after its pipe has closed.
const EXIT_REASON_TIMEOUT: Duration = Duration::from_secs(2);

/// How to reach an MCP server outside of the sandbox.
pub(super) struct HttpEgress {
    pub(super) proxy: Proxy,
    pub(super) upstream: Upstream,
    pub(super) headers: Headers,
}

pub(super) struct Supervisor {
    pub(super) desk: Arc<ServerState>,
    pub(super) spec: ServerSpec,
    pub(super) guest: Guest,
    pub(super) recorder: Arc<Recorder>,
    /// The job whose environment variables the process gets.
    pub(super) job: Arc<JobSpec>,
    /// Only for a server that is reached over HTTP.
    pub(super) http_egress: Option<HttpEgress>,
    /// Number of the process that was started last.
    pub(super) process: u32,
    /// Whether that process completed the MCP handshake and may still be running.
    pub(super) may_resume: bool,
}

/// A new connection.
struct Connection {
    session: Arc<Session>,
    exit_reason: Option<ExitReason>,
}

impl Supervisor {
    /// Runs until the job's agent ends.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let begun = Instant::now();
            let why = match self.connect().await {
                Ok(Ok(connection)) => self.hold(connection).await,
                Ok(Err(why)) => Ok(why),
                Err(error) => Err(error),
            };
            let why = match why {
                Ok(why) => why,
                Err(error) => {
                    let (job, server) = (self.recorder.job(), &self.desk.name);
                    return tracing::warn!(%job, server, %error, "an MCP server is not kept any more");
                }
            };
            failures = if begun.elapsed() >= STABLE_AFTER { 1 } else { failures + 1 };
            self.end_process().await;
            let is_over = failures > MAX_RESTARTS;
            let (state, after) = if is_over {
                (McpState::GivenUp, "it is not started again")
            } else {
                (McpState::Failed, "it is tried again")
            };
            let told = format!("{why}; {after}");
            if self.tell(state, &ToolList::default(), Some(told.clone())).await.is_err() {
                return;
            }
            self.desk.shut(told);
            if is_over {
                return;
            }
            sleep(FIRST_RESTART_DELAY * 2_u32.saturating_pow(failures - 1)).await;
        }
    }

    /// Connects to the server. The inner error says why the server does not answer.
    async fn connect(&mut self) -> Result<Result<Connection, String>, OrchestratorError> {
        if self.may_resume {
            self.may_resume = false;
            if let Some(connection) = self.attach().await {
                return Ok(Ok(connection));
            }
        }
        let limit = self.spec.start_timeout;
        match self.spec.reach.clone() {
            Reach::Stdio { command, environment } => {
                // Kill a process that was started earlier and that nobody can talk to any more.
                self.end_process().await;
                self.process += 1;
                // Log the start before it happens.
                self.tell(McpState::Starting, &ToolList::default(), None).await?;
                if !matches!(timeout(limit, reach(&mut self.guest)).await, Ok(Some(_))) {
                    return Ok(Err("the sandbox does not answer".into()));
                }
                let exec = Box::new(self.exec(command, environment));
                let (lines, recovered, exit_reason) =
                    process::connect(&self.guest, &self.key(), ConnectMode::Start(exec));
                let greeted = Session::initialize(lines, recovered.clone(), limit).await;
                let session = match greeted {
                    Ok(session) => Arc::new(session),
                    Err(error) => {
                        let noise = recovered
                            .noise()
                            .map(|line| format!("; it printed `{line}`, which is no message"));
                        let why = told(&exit_reason).await.unwrap_or_else(|| error.to_string());
                        return Ok(Err(why + &noise.unwrap_or_default()));
                    }
                };
                Ok(Ok(Connection { session, exit_reason: Some(exit_reason) }))
            }
            Reach::Http { url } => {
                let Some(way) = &self.http_egress else { return Ok(Err("there is no way out".into())) };
                let call = self.key().to_string();
                let (proxy, upstream) = (way.proxy.clone(), way.upstream.clone());
                let greeted = Session::connect(&url, &way.headers, proxy, upstream, call, limit).await;
                Ok(greeted
                    .map(|session| Connection { session: Arc::new(session), exit_reason: None })
                    .map_err(|error| error.to_string()))
            }
        }
    }

    /// Connects to the process that an earlier run of this server started, if it is still running.
    async fn attach(&mut self) -> Option<Connection> {
        let limit = self.spec.start_timeout;
        let client = timeout(limit, reach(&mut self.guest)).await.ok()??;
        let status = timeout(limit, client.call_status(self.key())).await.ok()?.ok()?;
        let CallStatus::Running { next_sequence } = status else { return None };
        let (lines, recovered, exit_reason) =
            process::connect(&self.guest, &self.key(), ConnectMode::Attach(next_sequence));
        Some(Connection {
            session: Arc::new(Session::resume(lines, recovered)),
            exit_reason: Some(exit_reason),
        })
    }

    /// Offers the server's tools for as long as it answers; returns why it stopped.
    async fn hold(&mut self, connection: Connection) -> Result<String, OrchestratorError> {
        let Connection { session, exit_reason } = connection;
        loop {
            let listed = match session.list(self.spec.start_timeout).await {
                Ok(listed) => listed,
                Err(error) => return Ok(exit_reason_or(exit_reason.as_ref(), error.to_string()).await),
            };
            let offer = ToolList::read(&self.desk.name, &listed, self.spec.tools.as_deref());
            self.tell(McpState::Connected, &offer, None).await?;
            self.desk.open(Arc::clone(&session), offer);
            tokio::select! {
                () = session.changed() => {}
                () = session.closed() => return Ok(exit_reason_or(exit_reason.as_ref(), "its connection is gone".into()).await),
            }
        }
    }

    /// Kills the process if it is still running, and lets the guest drop its output.
    async fn end_process(&mut self) {
        if !matches!(self.spec.reach, Reach::Stdio { .. }) || self.process == 0 {
            return;
        }
        let key = self.key();
        let ending = async {
            if let Some(client) = reach(&mut self.guest).await {
                let _ = client.kill(key.clone()).await;
                let _ = client.forget(key).await;
            }
        };
        let _ = timeout(KILL_TIMEOUT, ending).await;
    }

    fn key(&self) -> CallKey {
        CallKey::new(format!("mcp-{}", self.desk.name), self.process)
    }

    fn exec(&self, command: Vec<String>, environment: BTreeMap<String, String>) -> Exec {
        let key = self.key();
        let mut variables =
            job_environment(&self.job, &CallRef { id: key.call.clone(), attempt: key.attempt });
        variables.extend(environment);
        Exec {
            key,
            program: Program::Arguments(command),
            environment: variables,
            directory: None,
            stdin: None,
            keep_stdin_open: true,
            terminal: None,
            timeout_ms: None,
            kill_grace_ms: 2000,
        }
    }

    async fn tell(
        &self,
        state: McpState,
        offer: &ToolList,
        reason: Option<String>,
    ) -> Result<(), OrchestratorError> {
        let change = McpChange {
            server: self.desk.name.clone(),
            state,
            process: self.process,
            tools: offer.tools.iter().map(|tool| tool.spec.name.clone()).collect(),
            left_out: offer.left_out.clone(),
            reason,
        };
        self.recorder.record(EventBody::McpChanged(change)).await
    }
}

/// Why the process exited, if it did. The exit status may arrive a moment after the pipe has closed.
async fn told(exit_reason: &ExitReason) -> Option<String> {
    let mut exit_reason = exit_reason.clone();
    timeout(EXIT_REASON_TIMEOUT, exit_reason.wait_for(Option::is_some)).await.ok()?.ok()?.clone()
}

async fn exit_reason_or(exit_reason: Option<&ExitReason>, otherwise: String) -> String {
    match exit_reason {
        Some(exit_reason) => told(exit_reason).await.unwrap_or(otherwise),
        None => otherwise,
    }
}
