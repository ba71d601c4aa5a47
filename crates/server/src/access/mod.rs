//! Authentication and authorization.
//!
//! A server without keys lets everybody do everything, as on a laptop. With keys, each request authenticates with
//! `Authorization: Bearer`, with the cookie of a login, or with a shared link ([`Share`]). Every route is declared
//! with a [`RouteAccess`], and [`check`] compares it with the caller before the handler runs.

mod check;
mod grant;
mod id_token;
mod oidc;
mod permission;
mod session_cookie;
mod shared_link;
mod subject;
pub(crate) mod takeover_gate;
mod view;

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use job::{Actor, Key, KeyId, Role, Submitter};

pub(crate) use check::{Access, LogCaller, LogKind, LoginOutcome, check};
pub(crate) use grant::{AccessGrant, CloseSignal, Revocable};
pub(crate) use oidc::{PendingLogin, encode_account};
pub(crate) use permission::{Permission, RouteAccess};
pub(crate) use session_cookie::{
    OIDC_SESSION_LIFETIME, SESSION_COOKIE, SESSION_LIFETIME, ended_cookie, session_cookie,
};
pub(crate) use shared_link::{Rights, Share};
pub(crate) use subject::{Subject, parse_job_id};
pub(crate) use view::View;

/// The sender of a request.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// Anyone, because the server has no keys.
    Anybody,
    Key(Arc<Key>),
    /// The holder of a shared link to one view.
    Guest(Guest),
    /// An unauthenticated caller, at a route that requires nothing.
    Nobody,
}

/// A caller with a shared link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Guest {
    pub(crate) rights: Rights,
    /// The key that created the link.
    pub(crate) shared_by: Option<KeyId>,
}

impl Caller {
    /// The role of the caller.
    pub(crate) fn role(&self) -> Option<Role> {
        match self {
            Self::Anybody => Some(Role::Admin),
            Self::Key(key) => Some(key.role),
            Self::Guest(_) | Self::Nobody => None,
        }
    }

    fn key(&self) -> Option<&Key> {
        if let Self::Key(key) = self { Some(key) } else { None }
    }

    /// The submitter to store with a new job.
    pub(crate) fn submitter(&self) -> Option<Submitter> {
        self.key().map(Submitter::from)
    }

    /// The key, if the caller may see only that key's jobs.
    pub(crate) fn restricted_to(&self) -> Option<KeyId> {
        self.key().filter(|key| key.role == Role::Submitter).map(|key| key.id.clone())
    }

    /// Whether the caller may only watch a sandbox.
    pub(crate) fn is_view_only(&self) -> bool {
        match self {
            Self::Anybody => false,
            Self::Key(key) => key.role == Role::Viewer,
            Self::Guest(guest) => guest.rights == Rights::Watch,
            Self::Nobody => true,
        }
    }

    /// The name of the caller's key.
    pub(crate) fn name(&self) -> Option<&str> {
        self.key().map(|key| key.name.as_str())
    }

    /// The actor to record in the log of a job.
    pub(crate) fn actor(&self) -> Actor {
        let key = match self {
            Self::Key(key) => Some(key.id.clone()),
            Self::Guest(guest) => guest.shared_by.clone(),
            Self::Anybody | Self::Nobody => None,
        };
        Actor { name: self.log_name().to_owned(), key }
    }

    /// The caller's name for the access log.
    pub(crate) fn log_name(&self) -> &str {
        match self {
            Self::Anybody => "anybody",
            Self::Key(key) => &key.name,
            Self::Guest(_) => "guest",
            Self::Nobody => "nobody",
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // The access check stores the caller in every request that it lets pass.
        Ok(parts.extensions.get().cloned().unwrap_or(Self::Nobody))
    }
}
