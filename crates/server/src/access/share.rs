//! Shared links: each shows one view of one job to anybody who has it, for a limited time.
//!
//! The server seals a link and keeps a record of it (`orchestrator/access/shares.rs`). A link ends when it expires,
//! when the key of its creator is revoked, or when it is revoked itself. The web page creates some links for itself,
//! to open the origins of jobs. Those have no record and end with the login that they were made in.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use orchestrator::{JobId, KeyId, Orchestrator, SealedFor, SessionId, ShareId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::lease::{Lease, Revocable};
use super::oidc::PERSON;
use super::permission::RouteAccess;
use super::session::Transport;
use super::subject::Subject;

/// The prefix of link cookies. The name of the view follows.
const COOKIE: &str = "caisson_share_";
/// Marks, in the text of a link, that it ends with a login.
const OF_SESSION: &str = "login-";
/// The query parameter that carries a link, for clients that keep no cookies.
pub(crate) const QUERY: &str = "share";

/// A view of a job that can be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Desktop,
    Terminal,
    Files,
    Output,
    Events,
    Notebook,
    Port(u16),
}

impl View {
    /// The list of views for error messages.
    pub(crate) const NAMES: &str =
        "desktop, terminal, files, output, events, notebook, or a port such as 5173";
}

impl fmt::Display for View {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Desktop => "desktop",
            Self::Terminal => "terminal",
            Self::Files => "files",
            Self::Output => "output",
            Self::Events => "events",
            Self::Notebook => "notebook",
            Self::Port(port) => return write!(out, "{port}"),
        };
        out.write_str(name)
    }
}

impl FromStr for View {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "desktop" => Self::Desktop,
            "terminal" => Self::Terminal,
            "files" => Self::Files,
            "output" => Self::Output,
            "events" => Self::Events,
            "notebook" => Self::Notebook,
            other => match other.parse() {
                Ok(port @ 1..) => Self::Port(port),
                _ => {
                    return Err(format!(
                        "`{}` is not a view; there are {}",
                        other.escape_debug(),
                        Self::NAMES
                    ));
                }
            },
        })
    }
}

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
    pub(crate) fn seal(&self, orchestrator: &Orchestrator, lasts: Duration) -> String {
        orchestrator.seal(SealedFor::Link, &self.text(), lasts)
    }

    /// Opens a sealed link. `None` if it has ended.
    pub(crate) fn open(orchestrator: &Orchestrator, sealed: &str) -> Option<Self> {
        Self::open_until(orchestrator, sealed).map(|(share, _)| share)
    }

    /// Like [`Share::open`], with the expiry in milliseconds since 1970.
    pub(crate) fn open_until(orchestrator: &Orchestrator, sealed: &str) -> Option<(Self, i64)> {
        let (text, until_ms) = orchestrator.unseal_until(SealedFor::Link, sealed)?;
        let share = Self::parse(&text)?;
        let holds = Self::maker_is_known(orchestrator, share.by.as_ref()) && share.with.holds(orchestrator);
        holds.then_some((share, until_ms))
    }

    /// Whether the key that created a link is still valid.
    pub(crate) fn maker_is_known(orchestrator: &Orchestrator, by: Option<&KeyId>) -> bool {
        match by {
            // The server knows nothing about an OIDC account after the login. Once OIDC is turned off, no such
            // account is valid.
            Some(key) if key.as_str().starts_with(PERSON) => orchestrator.knows_people(),
            Some(key) => orchestrator.key(key).is_some(),
            // The link was created before the server had keys.
            None => !orchestrator.needs_keys(),
        }
    }

    /// The lease of a caller who uses the link.
    pub(crate) fn lease(&self, orchestrator: &Orchestrator, until_ms: i64) -> Lease {
        Lease::of(orchestrator, self.by.as_ref(), Some(until_ms)).with(self.with.clone())
    }

    /// The link as text, in characters that need no escaping in paths and cookies.
    fn text(&self) -> String {
        let rights = if self.rights == Rights::Use { "use" } else { "watch" };
        let by = self.by.as_ref().map_or("-", KeyId::as_str);
        let (prefix, id) = match &self.with {
            Revocable::Session(id) => (OF_SESSION, id.as_str()),
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
        let with = match with.strip_prefix(OF_SESSION) {
            Some(id) => Revocable::Session(SessionId::from(id.to_owned())),
            None => Revocable::Link(ShareId::from(with.to_owned())),
        };
        Some(Self { job, view, rights, by, with })
    }

    /// The cookie that keeps the view accessible to the browser.
    pub(crate) fn cookie(&self, sealed: &str, lasts_s: u64, transport: Transport) -> Option<HeaderValue> {
        let path = match self.view {
            View::Output => format!("/jobs/{}", self.job),
            _ => format!("/v1/jobs/{}", self.job),
        };
        let secure = if transport == Transport::Secret { "; Secure" } else { "" };
        let text = format!(
            "{COOKIE}{}={sealed}; Path={path}; Max-Age={lasts_s}; HttpOnly; SameSite=Lax{secure}",
            self.view
        );
        HeaderValue::try_from(text).ok()
    }
}

/// Finds a shared link in the request that grants access to the route.
pub(crate) fn admitting(
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
    // A request with a key skips the CSRF check of cookies (`cookie_origin.rs`), so its cookies must not count.
    let has_key = |value: &HeaderValue| value.as_bytes().starts_with(b"Bearer ");
    let are_meant = !headers.get(header::AUTHORIZATION).is_some_and(has_key);
    let in_cookies = cookies
        .filter(move |_| are_meant)
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| name.starts_with(COOKIE));
    let shown = in_query.chain(in_cookies).filter_map(|(_, sealed)| Share::open_until(orchestrator, sealed));
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
    fn views_are_read_by_name() {
        for name in ["desktop", "terminal", "files", "output", "events", "notebook", "1", "65535"] {
            assert_eq!(name.parse::<View>().unwrap().to_string(), name);
        }
        for name in ["", "0", "65536", "shell", "Desktop", "-1"] {
            assert!(name.parse::<View>().unwrap_err().contains("5173"), "{name}");
        }
    }

    #[test]
    fn a_share_is_written_and_read() {
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
    fn handlers_do_not_see_the_link() {
        let uri: Uri = "/v1/jobs/x/files?share=a.1.b&sort=name".parse().unwrap();
        assert_eq!(without_link(&uri), "/v1/jobs/x/files?sort=name");
        assert_eq!(without_link(&"/a?share=x".parse().unwrap()), "/a");
        assert_eq!(without_link(&"/a?b=c".parse().unwrap()), "/a?b=c");
    }
}
