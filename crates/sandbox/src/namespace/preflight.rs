//! Whether this host can run sandboxes, and how well.

use super::checks::checks;
use super::{Inner, probe};
use crate::error::SandboxError;
use crate::host::checks::refuse_missing;
use crate::limits::LimitSupport as _;
use crate::spec::{Capabilities, Isolation};

/// Fails if anything is missing that every sandbox needs.
pub(super) fn preflight(inner: &Inner) -> Result<Capabilities, SandboxError> {
    let checks = checks(inner);
    refuse_missing(&checks)?;
    let (isolation, offer) = match probe::namespaces(inner) {
        Ok(()) => (Isolation::Namespaces, &inner.offer),
        Err(_) => (Isolation::Landlock, &inner.landlock_only_limits),
    };
    Ok(Capabilities { isolation, enforced: offer.enforced(), checks })
}
