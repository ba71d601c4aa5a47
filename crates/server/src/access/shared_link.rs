//! Shared links: each shows one view of one job to anyone who has it, for a limited time.
//!
//! The server seals a link and keeps a record of it (`orchestrator/access/shares.rs`). A link ends when it expires,
//! when the key of its creator is revoked, or when it is revoked itself. The web page creates some links for itself,
//! to open the origins of jobs. Those have no record and end with the login that they were made in.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use job::{JobId, KeyId, SessionId, ShareId};
use orchestrator::{Orchestrator, SealPurpose};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::grant::{AccessGrant, Revocable};
use super::oidc::OIDC_KEY_PREFIX;
use super::permission::RouteAccess;
use super::subject::Subject;
use super::view::View;
use crate::guard::Transport;

/// The prefix of link cookies. The name of the view follows.
const COOKIE: &str = "caisson_share_";
/// Marks, in the text of a link, that it ends with a login.
const SESSION_MARK: &str = "login-";
/// The query parameter that carries a link, for clients that keep no cookies.
pub(crate) const QUERY: &str = "share";

/// What may be done through a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rights {
    /// To look.
    #[default]
    Watch,
    /// To type and click, too.
    Use,
}

/// A shared view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) job: JobId,
    pub(crate) view: View,
    pub(crate) rights: Rights,
    /// The key that created the link. `None` if the server had no keys.
    pub(crate) by: Option<KeyId>,
    /// What can revoke the link before it expires.
    pub(crate) with: Revocable,
}

impl Share {
    /// The sealed text of the link.
    pub(crate) fn seal(&self, orchestrator: &Orchestrator, lifetime: Duration) -> String {
        orchestrator.seal(SealPurpose::Link, &self.text(), lifetime)
    }

    /// Opens a sealed link. `None` if it has ended.
    pub(crate) fn open(orchestrator: &Orchestrator, sealed: &str) -> Option<Self> {
        Self::open_with_expiry(orchestrator, sealed).map(|(share, _)| share)
    }

    /// Like [`Share::open`], with the expiry in milliseconds since 1970.
    pub(crate) fn open_with_expiry(orchestrator: &Orchestrator, sealed: &str) -> Option<(Self, i64)> {
        let (text, until_ms) = orchestrator.unseal_until(SealPurpose::Link, sealed)?;
        let share = Self::parse(&text)?;
        let holds = Self::creator_is_valid(orchestrator, share.by.as_ref()) && share.with.holds(orchestrator);
        holds.then_some((share, until_ms))
    }

    /// Whether the key that created a link is still valid.
    pub(crate) fn creator_is_valid(orchestrator: &Orchestrator, by: Option<&KeyId>) -> bool {
        match by {
            // The server knows nothing about an OIDC account after the login. Once OIDC is turned off, no such
            // account is valid.
            Some(key) if key.as_str().starts_with(OIDC_KEY_PREFIX) => orchestrator.has_oidc_login(),
            Some(key) => orchestrator.key(key).is_some(),
            // The link was created before the server had keys.
            None => !orchestrator.requires_authentication(),
        }
    }

    /// The lease of a caller who uses the link.
    pub(crate) fn grant(&self, orchestrator: &Orchestrator, until_ms: i64) -> AccessGrant {
        AccessGrant::of(orchestrator, self.by.as_ref(), Some(until_ms)).with(self.with.clone())
    }

    /// The link as text, in characters that need no escaping in paths and cookies.
    fn text(&self) -> String {
        let rights = if self.rights == Rights::Use { "use" } else { "watch" };
        let by = self.by.as_ref().map_or("-", KeyId::as_str);
        let (prefix, id) = match &self.with {
            Revocable::Session(id) => (SESSION_MARK, id.as_str()),
            Revocable::Link(id) => ("", id.as_str()),
        };
        format!("{}~{}~{rights}~{by}~{prefix}{id}", self.job, self.view)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('~');
        let job = parts.next()?.parse().ok()?;
        let view = parts.next()?.parse().ok()?;
        let rights = if parts.next()? == "use" { Rights::Use } else { Rights::Watch };
        let by = Some(parts.next()?).filter(|by| *by != "-").map(|by| KeyId::from(by.to_owned()));
        let with = parts.next()?;
        let with = match with.strip_prefix(SESSION_MARK) {
            Some(id) => Revocable::Session(SessionId::from(id.to_owned())),
            None => Revocable::Link(ShareId::from(with.to_owned())),
        };
        Some(Self { job, view, rights, by, with })
    }

    /// The cookie that keeps the view accessible to the browser.
    pub(crate) fn cookie(&self, sealed: &str, lifetime_s: u64, transport: Transport) -> Option<HeaderValue> {
        let path = match self.view {
            View::Output => format!("/jobs/{}", self.job),
            _ => format!("/v1/jobs/{}", self.job),
        };
        let secure = if transport == Transport::Encrypted { "; Secure" } else { "" };
        let text = format!(
            "{COOKIE}{}={sealed}; Path={path}; Max-Age={lifetime_s}; HttpOnly; SameSite=Lax{secure}",
            self.view
        );
        HeaderValue::try_from(text).ok()
    }
}

/// Finds a shared link in the request that grants access to the route.
pub(crate) fn find_link(
    orchestrator: &Orchestrator,
    (route, subject): (RouteAccess, &Subject),
    (method, uri): (&Method, &Uri),
    headers: &HeaderMap,
) -> Option<(Share, i64)> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let (job, view) = (subject.job()?, route.shared_as?);
    let in_query = uri.query().into_iter().flat_map(|query| query.split('&'));
    let in_query = in_query.filter_map(|pair| pair.split_once('=')).filter(|(name, _)| *name == QUERY);
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    // A request with a key skips the CSRF check of cookies (`guard/csrf.rs`), so its cookies must not count.
    let has_key = |value: &HeaderValue| value.as_bytes().starts_with(b"Bearer ");
    let cookies_count = !headers.get(header::AUTHORIZATION).is_some_and(has_key);
    let in_cookies = cookies
        .filter(move |_| cookies_count)
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| name.starts_with(COOKIE));
    let shown =
        in_query.chain(in_cookies).filter_map(|(_, sealed)| Share::open_with_expiry(orchestrator, sealed));
    shown.into_iter().find(|(share, _)| share.job == job && share.view == view)
}

/// The URI without the link parameter, which handlers do not know.
pub(crate) fn without_link(uri: &Uri) -> Uri {
    let is_link = |pair: &&str| pair.split_once('=').is_some_and(|(name, _)| name == QUERY);
    let query = uri.query().unwrap_or_default();
    if !query.split('&').any(|pair| is_link(&pair)) {
        return uri.clone();
    }
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_link(pair)).collect();
    let path =
        if kept.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), kept.join("&")) };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = path.parse().ok();
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";

    #[test]
    fn views_parse_by_name() {
        for name in ["desktop", "terminal", "files", "output", "events", "notebook", "1", "65535"] {
            assert_eq!(name.parse::<View>().unwrap().to_string(), name);
        }
        for name in ["", "0", "65536", "shell", "Desktop", "-1"] {
            assert!(name.parse::<View>().unwrap_err().contains("5173"), "{name}");
        }
    }

    #[test]
    fn shared_link_round_trips() {
        let link = Revocable::Link(ShareId::from("0f".to_owned()));
        let session = Revocable::Session(SessionId::from("1e".to_owned()));
        for (view, rights, by, with) in [
            (View::Port(80), Rights::Use, None, session),
            (View::Desktop, Rights::Watch, Some(KeyId::from("k".to_owned())), link),
        ] {
            let share = Share { job: JOB.parse().unwrap(), view, rights, by, with };
            assert_eq!(Share::parse(&share.text()), Some(share));
        }
        assert_eq!(Share::parse(&format!("{JOB}~desktop~watch~-")), None, "as before links could be revoked");
        assert_eq!(Share::parse("nonsense"), None);
    }

    #[test]
    fn link_is_removed_from_the_query() {
        let uri: Uri = "/v1/jobs/x/files?share=a.1.b&sort=name".parse().unwrap();
        assert_eq!(without_link(&uri), "/v1/jobs/x/files?sort=name");
        assert_eq!(without_link(&"/a?share=x".parse().unwrap()), "/a");
        assert_eq!(without_link(&"/a?b=c".parse().unwrap()), "/a?b=c");
    }
}
