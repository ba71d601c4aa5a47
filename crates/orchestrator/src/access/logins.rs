//! Logins of the web page. A login is a sealed text in a cookie; the server stores nothing while it is valid. A login
//! that the user ends early is stored until its expiry, so that a copy of its cookie is rejected, even after a
//! restart.

use std::time::Duration;

use job::SessionId;
use uuid::Uuid;

use crate::core::Orchestrator;
use crate::core::seal::SealPurpose;
use crate::error::OrchestratorError;

/// Separates the id of a login from the user it belongs to.
const SEPARATOR: char = '~';

/// A valid login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    /// The identity that was sealed when the login began.
    pub who: String,
    /// Expiry, in milliseconds since 1970.
    pub until_ms: i64,
}

fn parse(text: &str) -> Option<(SessionId, &str)> {
    let (id, who) = text.split_once(SEPARATOR)?;
    Some((SessionId(id.to_owned()), who))
}

impl Orchestrator {
    /// Begins a login; returns the value of its cookie.
    #[must_use]
    pub fn begin_session(&self, who: &str, lasts: Duration) -> String {
        self.seal(SealPurpose::Session, &format!("{}{SEPARATOR}{who}", Uuid::new_v4().simple()), lasts)
    }

    /// The login of a cookie, if it is valid.
    #[must_use]
    pub fn session(&self, sealed: &str) -> Option<Session> {
        let (text, until_ms) = self.unseal_until(SealPurpose::Session, sealed)?;
        let (id, who) = parse(&text)?;
        self.session_holds(&id).then(|| Session { id, who: who.to_owned(), until_ms })
    }

    /// Whether the login has not been ended early.
    #[must_use]
    pub fn session_holds(&self, id: &SessionId) -> bool {
        !self.core.ended_sessions.contains(id)
    }

    /// Ends a login and closes what was opened with it.
    ///
    /// # Errors
    /// The store fails; the login then stays valid.
    pub async fn end_session(&self, session: Session) -> Result<(), OrchestratorError> {
        self.core.store.end_session(session.id.clone(), session.until_ms).await?;
        self.core.ended_sessions.add(session.id, session.until_ms);
        self.core.keys.changed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_without_an_id_are_rejected() {
        let (id, who) = parse("0f~oidc-1/admin/61").unwrap();
        assert_eq!((id.as_str(), who), ("0f", "oidc-1/admin/61"));
        assert_eq!(parse("01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f"), None, "as before logins could be ended");
    }
}
