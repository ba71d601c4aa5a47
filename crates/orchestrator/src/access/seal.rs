//! Seals texts that only this server can have produced.

use crate::clock::now_ms;
use crate::core::Orchestrator;
use crate::core::seal::SealPurpose;

impl Orchestrator {
    /// Seals a text. Only this server can create it, and [`Orchestrator::unseal`] returns it until it expires.
    #[must_use]
    pub fn seal(&self, purpose: SealPurpose, text: &str, lasts: std::time::Duration) -> String {
        let lasts_ms = i64::try_from(lasts.as_millis()).unwrap_or(i64::MAX);
        self.core.seal.write(purpose, text, now_ms().saturating_add(lasts_ms))
    }

    /// The sealed text, if this server sealed it for this purpose and it has not expired.
    #[must_use]
    pub fn unseal(&self, purpose: SealPurpose, sealed: &str) -> Option<String> {
        self.unseal_until(purpose, sealed).map(|(text, _)| text)
    }

    /// Like [`Orchestrator::unseal`], with the expiry in milliseconds since 1970.
    #[must_use]
    pub fn unseal_until(&self, purpose: SealPurpose, sealed: &str) -> Option<(String, i64)> {
        self.core.seal.read(purpose, sealed, now_ms())
    }
}
