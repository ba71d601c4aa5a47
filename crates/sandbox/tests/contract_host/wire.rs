//! The requests and answers between the backend and the service: one JSON line each.

use sandbox::{Ended, LimitKind, SandboxId, SandboxSpec};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Create {
        id: SandboxId,
        spec: SandboxSpec,
    },
    Observe {
        id: SandboxId,
    },
    List,
    /// After [`Reply::Done`] the connection is the stream to the guest.
    Connect {
        id: SandboxId,
    },
    Destroy {
        id: SandboxId,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    Observed { state: State, unenforced: Vec<(LimitKind, String)> },
    Listed(Vec<SandboxId>),
    Refused(Refusal),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum State {
    Missing,
    Starting { message: String },
    Ready,
    Ended(Ended),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    NoImage(String),
    NotRunning(String),
    OutOfRange { limit: LimitKind, value: u64, allowed: String },
    Unenforceable { limit: LimitKind, why: String },
}
