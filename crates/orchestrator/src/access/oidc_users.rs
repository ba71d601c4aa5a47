//! Users who log in through OpenID Connect.

use job::{KeyId, KeyLimits, Role};

use crate::core::Orchestrator;
use crate::error::OrchestratorError;

impl Orchestrator {
    /// Remembers the role of a user who logged in through OIDC, across restarts: their jobs may be queued while they
    /// are away.
    pub async fn remember_oidc_user(&self, id: &KeyId, role: Role) -> Result<(), OrchestratorError> {
        if self.core.keys.people.remember_role(id, role) {
            self.core.store.put_oidc_user(id.clone(), role).await?;
        }
        Ok(())
    }

    /// The limits of OIDC users with this role.
    #[must_use]
    pub fn oidc_limits(&self, role: Role) -> KeyLimits {
        self.core.keys.people.of_role(role)
    }
}
