//! The host of calls that are given up when their link breaks.

use std::future::pending;

use protocol::{GuestClient, ProtocolError};

use super::{CallHost, Interrupt};
use crate::error::OrchestratorError;

/// Follows a call over one link and never stops it.
pub(crate) struct OneLink {
    client: GuestClient,
}

impl OneLink {
    pub(crate) fn new(client: GuestClient) -> Self {
        Self { client }
    }
}

impl CallHost for OneLink {
    type Exit = OrchestratorError;

    async fn client(&mut self) -> Result<GuestClient, OrchestratorError> {
        Ok(self.client.clone())
    }

    fn before_start(&mut self) -> Result<(), OrchestratorError> {
        Ok(())
    }

    async fn interrupted(&mut self) -> Interrupt<OrchestratorError> {
        pending().await
    }

    async fn after_break(&mut self, error: ProtocolError) -> Result<(), OrchestratorError> {
        Err(error.into())
    }

    fn unrecorded(&self, error: OrchestratorError) -> Interrupt<OrchestratorError> {
        Interrupt::Leave(error)
    }
}
