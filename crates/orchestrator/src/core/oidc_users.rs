//! Users who log in through OIDC: the role each had at the last login, and the limits of each role. They have no key,
//! so their limits are set per role.

use std::collections::{BTreeMap, HashMap};
use std::sync::{PoisonError, RwLock};

use job::{KeyId, KeyLimits, Role};

/// Prefix of the ids of OIDC users. No key has an id or a name that starts with it.
pub const OIDC_ID_PREFIX: &str = "oidc-";

/// The OIDC users that this server knows.
#[derive(Debug, Default)]
pub(crate) struct OidcUsers {
    roles: RwLock<HashMap<KeyId, Role>>,
    limits: RwLock<BTreeMap<Role, KeyLimits>>,
}

impl OidcUsers {
    /// Sets the limits of each role.
    pub(crate) fn bound(&self, limits: BTreeMap<Role, KeyLimits>) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    pub(crate) fn of_role(&self, role: Role) -> KeyLimits {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        limits.get(&role).copied().unwrap_or_default()
    }

    /// Remembers the role of a user; returns whether it is new or has changed.
    pub(crate) fn remember_role(&self, id: &KeyId, role: Role) -> bool {
        if self.roles.read().unwrap_or_else(PoisonError::into_inner).get(id) == Some(&role) {
            return false;
        }
        self.roles.write().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), role);
        true
    }

    /// The role of a user; `None` if the id is not that of a known user.
    pub(super) fn role(&self, id: &KeyId) -> Option<Role> {
        self.roles.read().unwrap_or_else(PoisonError::into_inner).get(id).copied()
    }

    /// The ids of all known users.
    pub(super) fn ids(&self) -> Vec<KeyId> {
        self.roles.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// The limits of a user; `None` if the id is not that of a known user.
    pub(super) fn limits(&self, id: &KeyId) -> Option<KeyLimits> {
        self.role(id).map(|role| self.of_role(role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oidc_users_get_the_limits_of_their_latest_role() {
        let (people, ada) = (OidcUsers::default(), KeyId("oidc-ada".into()));
        let bounded = KeyLimits { max_running: Some(2), ..KeyLimits::default() };
        people.bound([(Role::Submitter, bounded)].into());
        assert_eq!(people.limits(&ada), None, "nobody knows them yet");
        assert!(people.remember_role(&ada, Role::Submitter) && !people.remember_role(&ada, Role::Submitter));
        assert_eq!(people.limits(&ada), Some(bounded));
        assert!(people.remember_role(&ada, Role::Operator));
        assert_eq!(people.limits(&ada), Some(KeyLimits::default()));
        assert_eq!((people.role(&ada), people.ids()), (Some(Role::Operator), vec![ada]));
    }
}
