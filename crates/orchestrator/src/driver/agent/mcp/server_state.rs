//! The current state of one MCP server; its keeper writes it, the agent reads it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mcp::{ListedTool, Session, ToolList};
use tokio::sync::watch;

/// How many left-out tools the model is told about.
const MAX_LEFT_OUT_NOTES: usize = 3;

pub(super) struct ServerState {
    pub(super) name: String,
    pub(super) call_timeout: Duration,
    state: Mutex<State>,
    changed: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
struct State {
    /// Whether the first connection attempt has finished.
    is_settled: bool,
    session: Option<Arc<Session>>,
    offer: ToolList,
    missing: Option<String>,
}

impl ServerState {
    pub(super) fn new(name: &str, call_timeout: Duration, changed: Arc<watch::Sender<u64>>) -> Self {
        Self { name: name.to_owned(), call_timeout, state: Mutex::default(), changed }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        state.is_settled = true;
        drop(state);
        self.changed.send_modify(|version| *version += 1);
    }

    fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the server's tools available.
    pub(super) fn open(&self, session: Arc<Session>, offer: ToolList) {
        self.change(|state| {
            state.session = Some(session);
            state.offer = offer;
            state.missing = None;
        });
    }

    /// Makes the server's tools unavailable. They stay known, so that a call fails with the reason and not with "no
    /// such tool".
    pub(super) fn shut(&self, why: String) {
        self.change(|state| {
            state.session = None;
            state.missing = Some(why);
        });
    }

    pub(super) fn is_settled(&self) -> bool {
        self.look(|state| state.is_settled)
    }

    /// The session, or the reason why there is none.
    pub(super) fn session(&self) -> Result<Arc<Session>, String> {
        self.look(|state| match &state.session {
            Some(session) => Ok(Arc::clone(session)),
            None => Err(state.missing.clone().unwrap_or_else(|| "it is being started".into())),
        })
    }

    /// The tools that are available now.
    pub(super) fn tools(&self) -> Vec<ListedTool> {
        self.look(|state| match &state.session {
            Some(_) => state.offer.tools.clone(),
            None => Vec::new(),
        })
    }

    /// The server's own name of a tool that it offers or offered.
    pub(super) fn own_name(&self, public: &str) -> Option<String> {
        self.look(|state| {
            state.offer.tools.iter().find(|tool| tool.spec.name == public).map(|tool| tool.name.clone())
        })
    }

    /// What the model must know about missing or left-out tools.
    pub(super) fn notes(&self) -> Vec<String> {
        let name = &self.name;
        self.look(|state| {
            if let Some(missing) = &state.missing {
                let short: String = missing.chars().take(300).collect();
                return vec![format!("those of the MCP server `{name}` are missing, {short}")];
            }
            let left_out = &state.offer.left_out;
            let told = left_out.iter().take(MAX_LEFT_OUT_NOTES);
            let mut notes: Vec<String> =
                told.map(|why| format!("MCP server `{name}`, left out: {why}")).collect();
            if left_out.len() > MAX_LEFT_OUT_NOTES {
                notes.push(format!(
                    "MCP server `{name}`, left out: {} more",
                    left_out.len() - MAX_LEFT_OUT_NOTES
                ));
            }
            notes
        })
    }
}
