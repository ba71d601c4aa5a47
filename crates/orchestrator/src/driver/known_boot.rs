//! Recognizes a guest that has restarted in its sandbox. Such a guest has lost all calls, kernels and services, but would
//! answer as if they had never been.

use std::sync::{Mutex, PoisonError};

use job::{Event, EventBody};
use sandbox::{EndReason, Ended, SandboxId};

/// The boot of the guest that the job's sandbox became ready with.
pub(super) struct KnownBoot(Mutex<Option<(SandboxId, String)>>);

impl KnownBoot {
    /// From the newest `sandbox_ready` event.
    pub(super) fn of_log(log: &[Event]) -> Self {
        Self(Mutex::new(log.iter().rev().find_map(|event| match &event.body {
            EventBody::SandboxReady { sandbox, boot_id, .. } => Some((*sandbox, boot_id.clone())),
            _ => None,
        })))
    }

    pub(super) fn set(&self, sandbox: SandboxId, boot_id: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((sandbox, boot_id.to_owned()));
    }

    /// Fails if this is another boot of the same sandbox. A sandbox that was not ready yet has nothing to lose.
    pub(super) fn check(&self, sandbox: SandboxId, boot_id: &str) -> Result<(), Ended> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((known, before)) if *known == sandbox && before != boot_id => Err(Ended {
                reason: EndReason::Lost,
                detail: "the guest restarted, so its processes are gone".into(),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_boot_of_the_same_sandbox_is_a_restart() {
        let (old, new) = (SandboxId::generate(), SandboxId::generate());
        let ready = |sandbox, boot_id: &str| Event {
            sequence: 1,
            time_ms: 0,
            call: None,
            actor: None,
            body: EventBody::SandboxReady { sandbox, boot_id: boot_id.into(), unenforced: Vec::new() },
        };
        let boot = KnownBoot::of_log(&[ready(old, "a"), ready(new, "b")]);
        assert!(boot.check(new, "b").is_ok() && boot.check(old, "c").is_ok());
        assert_eq!(boot.check(new, "c").unwrap_err().reason, EndReason::Lost);
        boot.set(new, "c");
        assert!(boot.check(new, "c").is_ok());
        assert!(KnownBoot::of_log(&[]).check(new, "a").is_ok());
    }
}
