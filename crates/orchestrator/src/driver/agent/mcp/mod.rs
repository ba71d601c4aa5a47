//! The MCP servers of a job: their current tools, and calls of these tools.

mod lines;
mod process;
mod server_state;
mod supervisor;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use agent::{Effect, ExternalTool, ExternalTools, ToolEnd, ToolStatus};
use egress::Upstream;
use job::{Event, EventBody, McpState, is_agent_call};
use mcp::{Headers, McpError, Reach, ServerChoice, ServerSpec, ToolOutcome};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::server_state::ServerState;
use self::supervisor::{HttpEgress, Supervisor};
use super::super::Driver;
use super::open_calls;

/// How much longer than a server's own start timeout to wait for its first answer.
const SETTLE_SLACK: Duration = Duration::from_secs(5);

/// The MCP servers of one job. Dropping it closes the connections; the server processes keep running.
pub(super) struct McpServers {
    servers: Vec<Arc<ServerState>>,
    version: Arc<watch::Sender<u64>>,
    /// Calls that were started before this run of the agent.
    begun: BTreeSet<String>,
    patience: Duration,
    _supervisors: JoinSet<()>,
}

impl McpServers {
    /// Starts the MCP servers of the job that this log belongs to, or reconnects to them.
    pub(super) fn start(driver: &Driver, log: &[Event]) -> Self {
        let settings = driver.core.settings();
        let version = Arc::new(watch::Sender::new(0));
        let mut supervisors = JoinSet::new();
        let mut servers = Vec::new();
        let mut patience = Duration::ZERO;
        let known = last_processes(log);
        for (name, choice) in &driver.spec.mcp {
            let found: Option<(ServerSpec, Headers)> = match choice {
                ServerChoice::Own(server) => Some(((**server).clone(), Headers::new())),
                ServerChoice::Configured => settings
                    .defaults
                    .mcp
                    .get(name)
                    .map(|configured| (configured.server.clone(), configured.headers.clone())),
            };
            let Some((spec, headers)) = found else {
                let desk = ServerState::new(name, Duration::ZERO, Arc::clone(&version));
                desk.shut("it is not in the configuration any more".into());
                servers.push(Arc::new(desk));
                continue;
            };
            let desk = Arc::new(ServerState::new(name, spec.call_timeout, Arc::clone(&version)));
            servers.push(Arc::clone(&desk));
            let http_egress = match (&spec.reach, Upstream::load(&settings.extra_ca)) {
                (Reach::Stdio { .. }, _) => None,
                (Reach::Http { .. }, Ok(upstream)) => driver.egress.as_ref().map(|egress| HttpEgress {
                    proxy: egress.proxy(),
                    upstream,
                    headers,
                }),
                (Reach::Http { .. }, Err(error)) => {
                    desk.shut(error.to_string());
                    continue;
                }
            };
            patience = patience.max(spec.start_timeout * 2 + SETTLE_SLACK);
            let (process, state) = known.get(name.as_str()).copied().unwrap_or((0, McpState::Failed));
            let supervisor = Supervisor {
                desk,
                spec,
                guest: driver.guest.subscribe(),
                recorder: Arc::clone(&driver.recorder),
                job: Arc::clone(&driver.spec),
                http_egress,
                process,
                may_resume: process > 0 && state == McpState::Connected,
            };
            supervisors.spawn(supervisor.run());
        }
        let begun = open_calls(log).into_iter().map(|call| call.id).filter(|id| is_agent_call(id)).collect();
        Self { servers, version, begun, patience, _supervisors: supervisors }
    }

    /// Waits until each server has connected or failed once, so that the first turn knows the tools.
    pub(super) async fn settle(&self) {
        let mut version = self.version.subscribe();
        let settling = async {
            while !self.servers.iter().all(|desk| desk.is_settled()) {
                if version.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(self.patience, settling).await;
    }

    /// The tools that are available now.
    pub(super) fn tools(&self) -> ExternalTools {
        // Read the version first, so that a concurrent change is noticed the next time.
        let version = *self.version.borrow();
        let tool = |tool: mcp::ListedTool| ExternalTool {
            spec: tool.spec,
            effect: if tool.is_read_only { Effect::ReadOnly } else { Effect::Changes },
        };
        ExternalTools {
            version,
            is_expected: !self.servers.is_empty(),
            tools: self.servers.iter().flat_map(|desk| desk.tools()).map(tool).collect(),
            notes: self.servers.iter().flat_map(|desk| desk.notes()).collect(),
        }
    }

    /// Calls a tool. A call that was started before is never sent again; only its answer is looked for. The error is
    /// what the model gets in place of an outcome.
    pub(super) async fn call(&self, tool: &str, input: Value, call: &str) -> Result<ToolOutcome, ToolEnd> {
        let found = self.servers.iter().find_map(|desk| Some((desk, desk.own_name(tool)?)));
        let was_begun = self.begun.contains(call);
        let Some((desk, own_name)) = found else {
            return Err(match was_begun {
                true => interrupted("its MCP server is not there any more"),
                false => ToolEnd::failed(format!("{tool}: the MCP server has no such tool any more")),
            });
        };
        let name = &desk.name;
        let session = match desk.session() {
            Ok(session) => session,
            Err(why) if was_begun => return Err(interrupted(&format!("the MCP server `{name}`: {why}"))),
            Err(why) => {
                let text = format!("not done: the MCP server `{name}` does not answer, {why}");
                return Err(ToolEnd::not_run(text));
            }
        };
        let answered = if was_begun {
            session.recover(call, desk.call_timeout).await
        } else {
            let arguments = match input {
                Value::Object(arguments) => arguments,
                _ => serde_json::Map::new(),
            };
            session.call(&own_name, arguments, call, desk.call_timeout).await
        };
        answered.map_err(|error| match error {
            McpError::InvalidResponse(_) => ToolEnd::failed(format!("the MCP server `{name}`: {error}")),
            error => interrupted(&format!("the MCP server `{name}`: {error}")),
        })
    }
}

fn interrupted(why: &str) -> ToolEnd {
    let text = format!("{why}. It is unknown how much of the call was done; check before you repeat it");
    ToolEnd { status: ToolStatus::Interrupted, text, ..ToolEnd::default() }
}

/// The newest process of each server, and its last known state.
fn last_processes(log: &[Event]) -> BTreeMap<&str, (u32, McpState)> {
    let mut known: HashMap<&str, (u32, McpState)> = HashMap::new();
    for event in log {
        match &event.body {
            EventBody::McpChanged(change) => {
                known.insert(&change.server, (change.process, change.state));
            }
            // Processes of a lost sandbox are gone.
            EventBody::SandboxLost { .. } => {
                known.values_mut().for_each(|(_, state)| *state = McpState::Failed);
            }
            _ => {}
        }
    }
    known.into_iter().collect()
}
