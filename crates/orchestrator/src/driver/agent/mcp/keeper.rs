//! Keeps one MCP server of a job connected: starts it, finds it again after a restart of this server, lists its tools,
//! starts it again when it dies, a few times with growing pauses. A server that does not answer stops nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use egress::{Proxy, Upstream};
use mcp::{Headers, Offer, Reach, ServerSpec, Session};
use protocol::{CallKey, CallStatus, Exec, Program};
use tokio::time::{Instant, sleep, timeout};

use super::desk::Desk;
use super::process::{self, Beginning, Fate, Guest, reach};
use crate::driver::environment as job_environment;
use crate::error::OrchestratorError;
use crate::event::{CallRef, EventBody};
use crate::mcp_view::{McpChange, McpState};
use crate::recorder::Recorder;
use crate::request::JobSpec;

/// How often a server is started again, and after which time of use that begins anew.
const MOST_RESTARTS: u32 = 5;
const STEADY: Duration = Duration::from_secs(120);
/// The pause before the first start again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// How long the end of a process is waited for.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How long the reason of a process's end may take to come after its pipe has closed.
const FATE_PATIENCE: Duration = Duration::from_secs(2);

/// How a server outside is reached.
pub(super) struct WayOut {
    pub(super) proxy: Proxy,
    pub(super) upstream: Upstream,
    pub(super) headers: Headers,
}

/// Keeps one server.
pub(super) struct Keeper {
    pub(super) desk: Arc<Desk>,
    pub(super) spec: ServerSpec,
    pub(super) guest: Guest,
    pub(super) recorder: Arc<Recorder>,
    /// Whose variables a process has.
    pub(super) job: Arc<JobSpec>,
    /// For a server outside.
    pub(super) way_out: Option<WayOut>,
    /// The newest process that was begun.
    pub(super) process: u32,
    /// Whether that process was greeted and may still run.
    pub(super) may_resume: bool,
}

/// A connection that was just made.
struct Connection {
    session: Arc<Session>,
    fate: Option<Fate>,
}

impl Keeper {
    /// Keeps the server until the job's agent ends.
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
            failures = if begun.elapsed() >= STEADY { 1 } else { failures + 1 };
            self.end_process().await;
            let is_over = failures > MOST_RESTARTS;
            let (state, after) = if is_over {
                (McpState::GivenUp, "it is not started again")
            } else {
                (McpState::Failed, "it is tried again")
            };
            let told = format!("{why}; {after}");
            if self.tell(state, &Offer::default(), Some(told.clone())).await.is_err() {
                return;
            }
            self.desk.shut(told);
            if is_over {
                return;
            }
            sleep(FIRST_PAUSE * 2_u32.saturating_pow(failures - 1)).await;
        }
    }

    /// Connects to the server. The inner error is why it does not answer.
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
                // One that was begun and that nobody can speak to any more.
                self.end_process().await;
                self.process += 1;
                // What is begun is in the log before it is.
                self.tell(McpState::Starting, &Offer::default(), None).await?;
                if !matches!(timeout(limit, reach(&mut self.guest)).await, Ok(Some(_))) {
                    return Ok(Err("the sandbox does not answer".into()));
                }
                let exec = Box::new(self.exec(command, environment));
                let (lines, recovered, fate) =
                    process::connect(&self.guest, &self.key(), Beginning::Start(exec));
                let greeted = Session::greet(lines, recovered.clone(), limit).await;
                let session = match greeted {
                    Ok(session) => Arc::new(session),
                    Err(error) => {
                        let noise = recovered
                            .noise()
                            .map(|line| format!("; it printed `{line}`, which is no message"));
                        let why = told(&fate).await.unwrap_or_else(|| error.to_string());
                        return Ok(Err(why + &noise.unwrap_or_default()));
                    }
                };
                Ok(Ok(Connection { session, fate: Some(fate) }))
            }
            Reach::Http { url } => {
                let Some(way) = &self.way_out else { return Ok(Err("there is no way out".into())) };
                let call = self.key().to_string();
                let (proxy, upstream) = (way.proxy.clone(), way.upstream.clone());
                let greeted = Session::connect(&url, &way.headers, proxy, upstream, call, limit).await;
                Ok(greeted
                    .map(|session| Connection { session: Arc::new(session), fate: None })
                    .map_err(|error| error.to_string()))
            }
        }
    }

    /// The process that an earlier run of this server has started, where it still runs.
    async fn attach(&mut self) -> Option<Connection> {
        let limit = self.spec.start_timeout;
        let client = timeout(limit, reach(&mut self.guest)).await.ok()??;
        let status = timeout(limit, client.call_status(self.key())).await.ok()?.ok()?;
        let CallStatus::Running { next_sequence } = status else { return None };
        let (lines, recovered, fate) =
            process::connect(&self.guest, &self.key(), Beginning::Attach(next_sequence));
        Some(Connection { session: Arc::new(Session::resume(lines, recovered)), fate: Some(fate) })
    }

    /// Offers the server's tools for as long as it answers; why it does no more.
    async fn hold(&mut self, connection: Connection) -> Result<String, OrchestratorError> {
        let Connection { session, fate } = connection;
        loop {
            let listed = match session.list(self.spec.start_timeout).await {
                Ok(listed) => listed,
                Err(error) => return Ok(fate_or(fate.as_ref(), error.to_string()).await),
            };
            let offer = Offer::read(&self.desk.name, &listed, self.spec.tools.as_deref());
            self.tell(McpState::Connected, &offer, None).await?;
            self.desk.open(Arc::clone(&session), offer);
            tokio::select! {
                () = session.changed() => {}
                () = session.closed() => return Ok(fate_or(fate.as_ref(), "its connection is gone".into()).await),
            }
        }
    }

    /// Ends what is left of the process, and lets the guest drop its output.
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
        let _ = timeout(KILL_PATIENCE, ending).await;
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
        offer: &Offer,
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

/// Why the process is gone, where it is: its end may be told a moment after its pipe has closed.
async fn told(fate: &Fate) -> Option<String> {
    let mut fate = fate.clone();
    timeout(FATE_PATIENCE, fate.wait_for(Option::is_some)).await.ok()?.ok()?.clone()
}

async fn fate_or(fate: Option<&Fate>, otherwise: String) -> String {
    match fate {
        Some(fate) => told(fate).await.unwrap_or(otherwise),
        None => otherwise,
    }
}
