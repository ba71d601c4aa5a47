//! How long what lets a caller in holds. A request asks once; what stays open (WebSockets, events, tunnels) ends with the key,
//! the login or the link that it was opened with: at its time, or when somebody revokes it.

use std::time::Duration;

use orchestrator::{KeyId, Orchestrator, SessionId, ShareId};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::oidc::PERSON;
use crate::answers::now_ms;

/// What a caller was let in by.
#[derive(Debug, Clone)]
enum By {
    /// Nothing is asked for at this route.
    Nothing,
    /// There are no keys.
    Nobody,
    /// A key, or an account elsewhere.
    Key(KeyId),
}

/// What can be ended before its time, beside keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Revocable {
    /// A login.
    Session(SessionId),
    /// A shared link.
    Link(ShareId),
}

impl Revocable {
    /// Whether nobody has ended it.
    pub(crate) fn holds(&self, orchestrator: &Orchestrator) -> bool {
        match self {
            Self::Session(id) => orchestrator.session_holds(id),
            Self::Link(id) => orchestrator.share_holds(id),
        }
    }
}

/// Until when a caller is let in.
#[derive(Clone)]
pub(crate) struct Lease {
    orchestrator: Orchestrator,
    by: By,
    until_ms: Option<i64>,
    with: Option<Revocable>,
}

impl Lease {
    /// Of who needs nothing.
    pub(crate) fn of_all(orchestrator: &Orchestrator) -> Self {
        Self { orchestrator: orchestrator.clone(), by: By::Nothing, until_ms: None, with: None }
    }

    /// Of a key, or of everybody while there is none.
    pub(crate) fn of(orchestrator: &Orchestrator, key: Option<&KeyId>, until_ms: Option<i64>) -> Self {
        let by = key.map_or(By::Nobody, |key| By::Key(key.clone()));
        Self { orchestrator: orchestrator.clone(), by, until_ms, with: None }
    }

    /// The same, as long as this was not ended.
    pub(crate) fn with(self, with: Revocable) -> Self {
        Self { with: Some(with), ..self }
    }

    /// The login, and how many seconds are left of it.
    pub(crate) fn session(&self) -> Option<(&SessionId, u64)> {
        let (Some(Revocable::Session(id)), Some(until_ms)) = (&self.with, self.until_ms) else { return None };
        // A second that has begun counts as none: what is made with a login is not to outlive it.
        Some((id, u64::try_from(until_ms.saturating_sub(now_ms()) / 1000).unwrap_or(0)))
    }

    /// The same, where it is the login of a person with an account elsewhere: what they share ends with it.
    pub(crate) fn session_of_person(&self) -> Option<(&SessionId, u64)> {
        let By::Key(key) = &self.by else { return None };
        self.session().filter(|_| key.as_str().starts_with(PERSON))
    }

    fn holds(&self) -> bool {
        let is_known = match &self.by {
            By::Nothing => true,
            By::Nobody => !self.orchestrator.needs_keys(),
            // Of a person no more is known here than at the login, which has an end.
            By::Key(key) => key.as_str().starts_with(PERSON) || self.orchestrator.key(key).is_some(),
        };
        let with = self.with.as_ref();
        is_known
            && with.is_none_or(|with| with.holds(&self.orchestrator))
            && self.until_ms.is_none_or(|until| now_ms() < until)
    }

    /// Waits until it does not hold any more.
    async fn ended(&self) {
        let mut changes = self.orchestrator.key_changes();
        loop {
            changes.borrow_and_update();
            if !self.holds() {
                return;
            }
            let time = async {
                match self.until_ms.map(|until| u64::try_from(until.saturating_sub(now_ms())).unwrap_or(0)) {
                    Some(left) => tokio::time::sleep(Duration::from_millis(left)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = time => {}
            }
        }
    }
}

/// Tells what stays open to close: with the server, or with its lease.
#[derive(Debug)]
pub(crate) struct Closing {
    token: CancellationToken,
    /// Whoever waits for the end of the lease stops when what was opened is over.
    _over: DropGuard,
}

impl Closing {
    /// Watches over a lease until this is dropped.
    pub(crate) fn new(lease: Option<Lease>, server: &CancellationToken) -> Self {
        let token = server.child_token();
        if let Some(lease) = lease {
            let ending = token.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = lease.ended() => ending.cancel(),
                    () = ending.cancelled() => {}
                }
            });
        }
        Self { _over: token.clone().drop_guard(), token }
    }

    /// Cancelled when it is time.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }
}
