//! The session cookie of a caller who logged in. It names the login and the key, sealed by the server, but does not
//! contain the key itself. It ends with the key. A logout also ends every copy of it.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use job::{Key, SessionId};

use crate::guard::Transport;

/// The lifetime of a login with a key.
pub(crate) const SESSION_LIFETIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The lifetime of an OIDC login. It is shorter, because the server learns of changes to the account only at the next
/// login.
pub(crate) const OIDC_SESSION_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);

/// The name of the session cookie.
pub(crate) const SESSION_COOKIE: &str = "caisson_session";

/// The sealed values of all session cookies of a request. A page elsewhere below the same domain may have set one
/// beside the server's own.
pub(super) fn find(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| *name == SESSION_COOKIE)
        .map(|(_, value)| value)
}

/// A valid session.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ActiveSession {
    pub(super) key: Arc<Key>,
    pub(super) id: SessionId,
    /// The expiry, in milliseconds since 1970.
    pub(super) until_ms: i64,
}

/// The sessions of a request belong to different callers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConflictingSessions;

/// The session that expires last, provided that all valid sessions of the request belong to the same caller.
pub(super) fn only(
    opened: impl Iterator<Item = ActiveSession>,
) -> Result<Option<ActiveSession>, ConflictingSessions> {
    let mut found: Option<ActiveSession> = None;
    for next in opened {
        found = match found {
            None => Some(next),
            Some(first) if first.key.id != next.key.id || first.key.role != next.key.role => {
                return Err(ConflictingSessions);
            }
            Some(first) if first.until_ms < next.until_ms => Some(next),
            first => first,
        };
    }
    Ok(found)
}

/// The `Set-Cookie` header that starts a session. Scripts cannot read the cookie. A page of another site can link
/// here with it but cannot change anything, because every change and every WebSocket passes the check of `Origin`.
pub(crate) fn session_cookie(sealed: &str, transport: Transport) -> Option<HeaderValue> {
    cookie(sealed, SESSION_LIFETIME.as_secs(), transport)
}

/// The `Set-Cookie` header that deletes the session cookie.
pub(crate) fn ended_cookie(transport: Transport) -> Option<HeaderValue> {
    cookie("", 0, transport)
}

fn cookie(value: &str, lifetime_s: u64, transport: Transport) -> Option<HeaderValue> {
    let secure = if transport == Transport::Encrypted { "; Secure" } else { "" };
    let text =
        format!("{SESSION_COOKIE}={value}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Lax{secure}");
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
    fn sessions_of_two_callers_are_rejected() {
        let key = |id: &str, role: &str| {
            let key = serde_json::json!({"id": id, "name": id, "role": role, "created_ms": 0});
            Arc::new(serde_json::from_value::<Key>(key).unwrap())
        };
        let (ada, bob) = (key("ada", "submitter"), key("bob", "admin"));
        let open = |key: &Arc<Key>, until_ms: i64| {
            let id = SessionId::from(until_ms.to_string());
            ActiveSession { key: Arc::clone(key), id, until_ms }
        };
        let of = |opened: Vec<(&Arc<Key>, i64)>| {
            only(opened.into_iter().map(|(key, until_ms)| open(key, until_ms)))
        };
        assert_eq!(of(Vec::new()), Ok(None));
        assert_eq!(of(vec![(&ada, 1), (&ada, 3), (&ada, 2)]), Ok(Some(open(&ada, 3))));
        assert_eq!(of(vec![(&ada, 1), (&bob, 2)]), Err(ConflictingSessions));
        assert_eq!(of(vec![(&ada, 1), (&key("ada", "admin"), 2)]), Err(ConflictingSessions));
    }

    #[test]
    fn session_cookie_has_protective_attributes() {
        let text = session_cookie("a.1.b", Transport::Encrypted).unwrap().to_str().unwrap().to_owned();
        for part in ["HttpOnly", "SameSite=Lax", "Secure", "Path=/"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!session_cookie("a", Transport::Plain).unwrap().to_str().unwrap().contains("Secure"));
    }
}
