//! The host's side of the service requests.

use crate::client::{GuestClient, refuse, unexpected};
use crate::error::ProtocolError;
use crate::message::{Reply, Request};
use crate::service::{Endpoint, ServiceName, ServiceOrder, ServiceSpec, ServiceStatus};
use crate::stream::ByteStream;

impl GuestClient {
    /// Starts a service if it is not running and connects to one of its endpoints. The service counts as in use while
    /// the stream is open.
    ///
    /// # Errors
    /// The service could not be started (the message includes its last lines of output), or the link is broken.
    pub async fn open_service(
        &self,
        service: ServiceSpec,
        endpoint: Endpoint,
    ) -> Result<impl ByteStream + use<>, ProtocolError> {
        let order = ServiceOrder::Open { service, endpoint };
        let mut stream = self.begin(&Request::Service { order }).await?;
        match refuse(stream.receive_message::<Reply>().await?)? {
            Reply::Done => Ok(stream.into_raw()),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts a service if it is not running. Returns when it is ready.
    ///
    /// # Errors
    /// The service could not be started (the message includes its last lines of output), or the link is broken.
    pub async fn start_service(&self, service: ServiceSpec) -> Result<(), ProtocolError> {
        self.order_service(ServiceOrder::Start { service }).await
    }

    /// Stops a service. Returns when it has ended.
    ///
    /// # Errors
    /// The service is unknown, or the link is broken.
    pub async fn stop_service(&self, name: ServiceName) -> Result<(), ProtocolError> {
        self.order_service(ServiceOrder::Stop { name }).await
    }

    /// Stops and starts a service. Returns when it is ready.
    ///
    /// # Errors
    /// The service is unknown or could not be started, or the link is broken.
    pub async fn restart_service(&self, name: ServiceName) -> Result<(), ProtocolError> {
        self.order_service(ServiceOrder::Restart { name }).await
    }

    /// Lists every service that was ever started, sorted by name.
    pub async fn services(&self) -> Result<Vec<ServiceStatus>, ProtocolError> {
        match self.ask(&Request::Service { order: ServiceOrder::Status }).await? {
            Reply::Services { services } => Ok(services),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the newest output of a service.
    ///
    /// # Errors
    /// The service is unknown, or the link is broken.
    pub async fn service_log(&self, name: ServiceName) -> Result<String, ProtocolError> {
        match self.ask(&Request::Service { order: ServiceOrder::Log { name } }).await? {
            Reply::ServiceLog { text } => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    async fn order_service(&self, order: ServiceOrder) -> Result<(), ProtocolError> {
        match self.ask(&Request::Service { order }).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}
