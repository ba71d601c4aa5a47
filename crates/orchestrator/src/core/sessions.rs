//! Login sessions that were revoked before they expired.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use job::SessionId;

/// Logins that were ended before they expired, with their expiry.
#[derive(Debug, Default)]
pub(crate) struct EndedSessions(RwLock<HashMap<SessionId, i64>>);

impl EndedSessions {
    pub(crate) fn new(ended: Vec<(SessionId, i64)>) -> Self {
        Self(RwLock::new(ended.into_iter().collect()))
    }

    pub(crate) fn contains(&self, id: &SessionId) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    pub(crate) fn add(&self, id: SessionId, until_ms: i64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(id, until_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ended_logins_are_rejected() {
        let id = |text: &str| SessionId::from(text.to_owned());
        let ended = EndedSessions::new(vec![(id("one"), 1)]);
        ended.add(id("two"), 2);
        assert!(ended.contains(&id("one")) && ended.contains(&id("two")) && !ended.contains(&id("three")));
    }
}
