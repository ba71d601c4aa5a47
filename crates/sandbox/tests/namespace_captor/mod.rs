//! The namespace backend as a [`AttackedBackend`]: as root, as an ordinary user, and with Landlock alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use sandbox::conformance::Subject as _;
use sandbox::{Isolation, LimitKind, SandboxId};

use crate::escape_suite::AttackedBackend;
use crate::namespace_host::Host;

impl AttackedBackend for Host {
    fn outside(&self, id: SandboxId) -> Vec<i32> {
        vec![self.launcher_pid(id)]
    }

    fn guest_inside(&self, id: SandboxId) -> i32 {
        if self.isolation() == Isolation::Landlock { self.guest_pid(id) } else { 1 }
    }

    fn programs(&self) -> Vec<PathBuf> {
        vec![self.config.guest.clone(), self.config.launcher.clone()]
    }

    fn state(&self, id: SandboxId) -> PathBuf {
        self.sandbox(id)
    }

    fn enforces(&self, limit: LimitKind) -> bool {
        let is_root = rustix::process::geteuid().is_root();
        match (self.isolation(), is_root) {
            (Isolation::Landlock, true) => [LimitKind::Memory, LimitKind::Pids].contains(&limit),
            (Isolation::Landlock, false) => false,
            (_, true) => true,
            (_, false) => limit == LimitKind::Pids,
        }
    }
}
