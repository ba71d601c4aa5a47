//! Escape attempts from a container.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod docker_host;
mod escape_suite;

use std::path::PathBuf;

use docker_host::Host;
use escape_suite::{AttackedBackend, escape_suite};
use sandbox::{LimitKind, SandboxId};

impl AttackedBackend for Host {
    fn outside(&self, id: SandboxId) -> Vec<i32> {
        vec![Self::owner_pid(id), Self::guest_pid(id)]
    }

    fn programs(&self) -> Vec<PathBuf> {
        vec![self.config.guest.clone()]
    }

    fn state(&self, _id: SandboxId) -> PathBuf {
        self.config.state_dir.clone()
    }

    fn enforces(&self, _limit: LimitKind) -> bool {
        true
    }
}

escape_suite!(Host::new());
