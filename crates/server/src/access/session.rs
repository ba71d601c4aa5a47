//! The cookie of somebody who logged in with a key. It says which login it is and which key, sealed by the server; the key itself is
//! not in it. It ends with the key, and when somebody logs out, whoever has a copy.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use orchestrator::{Key, SessionId};

/// How long a login holds.
pub(crate) const SESSION_LASTS: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// And one with an account elsewhere, so that what changes there is not missed for long.
pub(crate) const PERSON_LASTS: Duration = Duration::from_secs(12 * 60 * 60);

/// The cookie of a login.
pub(crate) const SESSION_COOKIE: &str = "caisson_session";

/// Whether the connection to the browser is secret; then the cookie travels nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Plain,
    Secret,
}

/// What a request's cookies of this name say, still sealed. A page elsewhere below the same domain may have put one beside the
/// server's own.
pub(super) fn find(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| *name == SESSION_COOKIE)
        .map(|(_, value)| value)
}

/// A session that holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Opened {
    pub(super) key: Arc<Key>,
    pub(super) id: SessionId,
    /// When it ends by itself, in milliseconds since 1970.
    pub(super) until_ms: i64,
}

/// The sessions that a request shows are of two callers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Differing;

/// The caller whom all good sessions of a request name, with the longest of them.
pub(super) fn only(opened: impl Iterator<Item = Opened>) -> Result<Option<Opened>, Differing> {
    let mut found: Option<Opened> = None;
    for next in opened {
        found = match found {
            None => Some(next),
            Some(first) if first.key.id != next.key.id || first.key.role != next.key.role => {
                return Err(Differing);
            }
            Some(first) if first.until_ms < next.until_ms => Some(next),
            first => first,
        };
    }
    Ok(found)
}

/// The header that makes a browser keep a session. No script can read it. A page of another site can lead here with it,
/// and do nothing: whatever changes something, and every WebSocket, passes the check of `Origin`.
pub(crate) fn session_cookie(sealed: &str, transport: Transport) -> Option<HeaderValue> {
    cookie(sealed, SESSION_LASTS.as_secs(), transport)
}

/// The header that makes a browser forget it.
pub(crate) fn ended_cookie(transport: Transport) -> Option<HeaderValue> {
    cookie("", 0, transport)
}

fn cookie(value: &str, lasts_s: u64, transport: Transport) -> Option<HeaderValue> {
    let secure = if transport == Transport::Secret { "; Secure" } else { "" };
    let text = format!("{SESSION_COOKIE}={value}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Lax{secure}");
    HeaderValue::try_from(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        assert_eq!(find(&headers).count(), 0);
        headers.append(header::COOKIE, HeaderValue::from_static("theme=dark; caisson_session=a.1.b"));
        headers.append(header::COOKIE, HeaderValue::from_static("caisson_session=c.2.d; caisson_sessions=x"));
        assert_eq!(find(&headers).collect::<Vec<_>>(), ["a.1.b", "c.2.d"]);
    }

    #[test]
    fn sessions_of_two_callers_are_no_session() {
        let key = |id: &str, role: &str| {
            let key = serde_json::json!({"id": id, "name": id, "role": role, "created_ms": 0});
            Arc::new(serde_json::from_value::<Key>(key).unwrap())
        };
        let (ada, bob) = (key("ada", "submitter"), key("bob", "admin"));
        let open = |key: &Arc<Key>, until_ms: i64| {
            let id = SessionId::from(until_ms.to_string());
            Opened { key: Arc::clone(key), id, until_ms }
        };
        let of = |opened: Vec<(&Arc<Key>, i64)>| {
            only(opened.into_iter().map(|(key, until_ms)| open(key, until_ms)))
        };
        assert_eq!(of(Vec::new()), Ok(None));
        assert_eq!(of(vec![(&ada, 1), (&ada, 3), (&ada, 2)]), Ok(Some(open(&ada, 3))));
        assert_eq!(of(vec![(&ada, 1), (&bob, 2)]), Err(Differing));
        assert_eq!(of(vec![(&ada, 1), (&key("ada", "admin"), 2)]), Err(Differing));
    }

    #[test]
    fn no_script_and_no_other_site_can_use_the_cookie() {
        let text = session_cookie("a.1.b", Transport::Secret).unwrap().to_str().unwrap().to_owned();
        for part in ["HttpOnly", "SameSite=Lax", "Secure", "Path=/"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!session_cookie("a", Transport::Plain).unwrap().to_str().unwrap().contains("Secure"));
    }
}
