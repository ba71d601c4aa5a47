//! How long a caller's access lasts. A request is checked once. What stays open (WebSockets, event streams, tunnels)
//! ends when the key, login or shared link that opened it expires or is revoked.

use std::time::Duration;

use job::{KeyId, SessionId, ShareId};
use orchestrator::Orchestrator;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::oidc::OIDC_KEY_PREFIX;
use crate::clock::now_ms;

/// How a caller was authenticated.
#[derive(Debug, Clone)]
enum GrantedTo {
    /// The route requires nothing.
    PublicRoute,
    /// The server has no keys.
    NoKeys,
    /// An API key or an OIDC account.
    Key(KeyId),
}

/// Access other than a key that can be revoked before it expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Revocable {
    Session(SessionId),
    Link(ShareId),
}

impl Revocable {
    /// Whether it has not been revoked.
    pub(crate) fn holds(&self, orchestrator: &Orchestrator) -> bool {
        match self {
            Self::Session(id) => orchestrator.session_holds(id),
            Self::Link(id) => orchestrator.share_holds(id),
        }
    }
}

/// The access of a caller, until it expires or is revoked.
#[derive(Clone)]
pub(crate) struct AccessGrant {
    orchestrator: Orchestrator,
    by: GrantedTo,
    until_ms: Option<i64>,
    with: Option<Revocable>,
}

impl AccessGrant {
    /// A lease for a route that requires nothing.
    pub(crate) fn unrestricted(orchestrator: &Orchestrator) -> Self {
        Self { orchestrator: orchestrator.clone(), by: GrantedTo::PublicRoute, until_ms: None, with: None }
    }

    /// A lease of a key, or of any caller while the server has no keys.
    pub(crate) fn of(orchestrator: &Orchestrator, key: Option<&KeyId>, until_ms: Option<i64>) -> Self {
        let by = key.map_or(GrantedTo::NoKeys, |key| GrantedTo::Key(key.clone()));
        Self { orchestrator: orchestrator.clone(), by, until_ms, with: None }
    }

    /// Ends the lease also when `with` is revoked.
    pub(crate) fn with(self, with: Revocable) -> Self {
        Self { with: Some(with), ..self }
    }

    /// The login session and the whole seconds left of it.
    pub(crate) fn session(&self) -> Option<(&SessionId, u64)> {
        let (Some(Revocable::Session(id)), Some(until_ms)) = (&self.with, self.until_ms) else { return None };
        // Round down: what is created with a login must not outlive it.
        Some((id, u64::try_from(until_ms.saturating_sub(now_ms()) / 1000).unwrap_or(0)))
    }

    /// The session and its remaining seconds, if the caller logged in with OIDC. What such a caller shares ends with
    /// the login.
    pub(crate) fn oidc_session(&self) -> Option<(&SessionId, u64)> {
        let GrantedTo::Key(key) = &self.by else { return None };
        self.session().filter(|_| key.as_str().starts_with(OIDC_KEY_PREFIX))
    }

    fn holds(&self) -> bool {
        let is_known = match &self.by {
            GrantedTo::PublicRoute => true,
            GrantedTo::NoKeys => !self.orchestrator.requires_authentication(),
            // The server knows nothing about an OIDC account after the login, and the login has an expiry.
            GrantedTo::Key(key) => {
                key.as_str().starts_with(OIDC_KEY_PREFIX) || self.orchestrator.key(key).is_some()
            }
        };
        let with = self.with.as_ref();
        is_known
            && with.is_none_or(|with| with.holds(&self.orchestrator))
            && self.until_ms.is_none_or(|until| now_ms() < until)
    }

    /// Waits until the lease has ended.
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

/// Signals a long-lived connection to close, when the server shuts down or its lease ends.
#[derive(Debug)]
pub(crate) struct CloseSignal {
    token: CancellationToken,
    /// Stops the task that watches the lease when this is dropped.
    _over: DropGuard,
}

impl CloseSignal {
    /// Watches a lease until this is dropped.
    pub(crate) fn new(grant: Option<AccessGrant>, server: &CancellationToken) -> Self {
        let token = server.child_token();
        if let Some(grant) = grant {
            let ending = token.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = grant.ended() => ending.cancel(),
                    () = ending.cancelled() => {}
                }
            });
        }
        Self { _over: token.clone().drop_guard(), token }
    }

    /// Cancelled when the connection must close.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }
}
