//! Those who log in with accounts elsewhere: which role each has had at the last login, and what a role may use. They have no
//! key, so what they may use is set by role.

use std::collections::{BTreeMap, HashMap};
use std::sync::{PoisonError, RwLock};

use super::{KeyId, KeyLimits, Role};
use crate::error::OrchestratorError;
use crate::orchestrator::Orchestrator;

/// How the ids of people begin: no key has such an id, or such a name.
pub const PERSON_PREFIX: &str = "oidc-";

/// The people that this server knows.
#[derive(Debug, Default)]
pub(crate) struct People {
    roles: RwLock<HashMap<KeyId, Role>>,
    limits: RwLock<BTreeMap<Role, KeyLimits>>,
}

impl People {
    /// Sets what each role may use.
    pub(super) fn bound(&self, limits: BTreeMap<Role, KeyLimits>) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    fn of_role(&self, role: Role) -> KeyLimits {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        limits.get(&role).copied().unwrap_or_default()
    }

    /// Remembers a role; whether it is news.
    pub(crate) fn meet(&self, id: &KeyId, role: Role) -> bool {
        if self.roles.read().unwrap_or_else(PoisonError::into_inner).get(id) == Some(&role) {
            return false;
        }
        self.roles.write().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), role);
        true
    }

    /// The role of a person, where this is one.
    pub(super) fn role(&self, id: &KeyId) -> Option<Role> {
        self.roles.read().unwrap_or_else(PoisonError::into_inner).get(id).copied()
    }

    /// All of them.
    pub(super) fn ids(&self) -> Vec<KeyId> {
        self.roles.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// What a person may use, where this is one.
    pub(super) fn limits(&self, id: &KeyId) -> Option<KeyLimits> {
        self.role(id).map(|role| self.of_role(role))
    }
}

impl Orchestrator {
    /// Remembers the role of somebody who has logged in with an account elsewhere, also for the next server: their jobs
    /// may wait while they are away.
    ///
    /// # Errors
    /// The store fails.
    pub async fn meet_person(&self, id: &KeyId, role: Role) -> Result<(), OrchestratorError> {
        if self.core.keys.people.meet(id, role) {
            self.core.store.put_person(id.clone(), role).await?;
        }
        Ok(())
    }

    /// What somebody with this role may use who has logged in with an account elsewhere.
    #[must_use]
    pub fn limits_of_people(&self, role: Role) -> KeyLimits {
        self.core.keys.people.of_role(role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_may_use_what_their_last_role_may() {
        let (people, ada) = (People::default(), KeyId("oidc-ada".into()));
        let bounded = KeyLimits { max_running: Some(2), ..KeyLimits::default() };
        people.bound([(Role::Submitter, bounded)].into());
        assert_eq!(people.limits(&ada), None, "nobody knows them yet");
        assert!(people.meet(&ada, Role::Submitter) && !people.meet(&ada, Role::Submitter));
        assert_eq!(people.limits(&ada), Some(bounded));
        assert!(people.meet(&ada, Role::Operator));
        assert_eq!(people.limits(&ada), Some(KeyLimits::default()));
        assert_eq!((people.role(&ada), people.ids()), (Some(Role::Operator), vec![ada]));
    }
}
