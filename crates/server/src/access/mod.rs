//! Who is calling, and whether they may.
//!
//! Where the server has no key, everybody may do everything, as on a laptop. With keys, each request says whose it is: by
//! `Authorization: Bearer`, by the cookie of a login, or by a link that was shared ([`Share`]). Every route is declared with a [`RouteAccess`]; [`check`] compares
//! it with the caller, before any handler runs.

mod check;
mod id_token;
mod journal;
mod journal_file;
mod lease;
mod oidc;
mod pace;
mod permission;
mod recent;
mod session;
mod share;
mod subject;

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use orchestrator::{Actor, Key, KeyId, Role, Submitter};

pub(crate) use check::{Access, Kind, LoginOutcome, Who, check};
pub use journal::AccessLog;
pub(crate) use journal::Deed;
pub(crate) use lease::{Closing, Lease, Revocable};
pub use oidc::{ClientSecret, OidcSettings};
pub(crate) use oidc::{Pending, text_of};
pub(crate) use permission::{Permission, RouteAccess};
pub(crate) use session::{
    PERSON_LASTS, SESSION_COOKIE, SESSION_LASTS, Transport, ended_cookie, session_cookie,
};
pub(crate) use share::{Rights, Share, View};
pub(crate) use subject::Subject;

/// Who sent a request.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// Anybody: there are no keys.
    Anybody,
    /// The holder of a key.
    Key(Arc<Key>),
    /// Somebody with a link to one view.
    Guest(Guest),
    /// Somebody who has shown nothing, at a route that asks for nothing.
    Nobody,
}

/// Somebody who came by a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Guest {
    /// What the link allows.
    pub(crate) rights: Rights,
    /// The key of who shared it.
    pub(crate) shared_by: Option<KeyId>,
}

impl Caller {
    /// What they may do.
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

    /// As whose a new job is stored.
    pub(crate) fn submitter(&self) -> Option<Submitter> {
        self.key().map(Submitter::from)
    }

    /// The key whose jobs are all that they may see.
    pub(crate) fn sees_only(&self) -> Option<KeyId> {
        self.key().filter(|key| key.role == Role::Submitter).map(|key| key.id.clone())
    }

    /// Whether they may look into a sandbox and do nothing there.
    pub(crate) fn only_watches(&self) -> bool {
        match self {
            Self::Anybody => false,
            Self::Key(key) => key.role == Role::Viewer,
            Self::Guest(guest) => guest.rights == Rights::Watch,
            Self::Nobody => true,
        }
    }

    /// The name of their key.
    pub(crate) fn name(&self) -> Option<&str> {
        self.key().map(|key| key.name.as_str())
    }

    /// As whose deed something is written into the log of a job.
    pub(crate) fn actor(&self) -> Actor {
        let key = match self {
            Self::Key(key) => Some(key.id.clone()),
            Self::Guest(guest) => guest.shared_by.clone(),
            Self::Anybody | Self::Nobody => None,
        };
        Actor { name: self.told().to_owned(), key }
    }

    /// For the log.
    pub(crate) fn told(&self) -> &str {
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
        // Every request has passed the check, which leaves its finding here.
        Ok(parts.extensions.get().cloned().unwrap_or(Self::Nobody))
    }
}
