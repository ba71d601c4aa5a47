//! The host's side of the requests about services.

use crate::client::{GuestClient, refuse, unexpected};
use crate::error::ProtocolError;
use crate::message::{Reply, Request};
use crate::service::{Endpoint, ServiceName, ServiceOrder, ServiceSpec, ServiceStatus};
use crate::stream::ByteStream;

impl GuestClient {
    /// Connects to an endpoint of a service, which is started where needed and in use as long as the stream is open.
    ///
    /// # Errors
    /// It could not be started, with its last lines; or the link is broken.
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

    /// Starts a service where needed; returns when it is ready.
    ///
    /// # Errors
    /// It could not be started, with its last lines; or the link is broken.
    pub async fn start_service(&self, service: ServiceSpec) -> Result<(), ProtocolError> {
        self.order_service(ServiceOrder::Start { service }).await
    }

    /// Stops a service; returns when it has ended.
    ///
    /// # Errors
    /// It is unknown, or the link is broken.
    pub async fn stop_service(&self, name: ServiceName) -> Result<(), ProtocolError> {
        self.order_service(ServiceOrder::Stop { name }).await
    }

    /// Stops a service and starts it again; returns when it is ready.
    ///
    /// # Errors
    /// It is unknown or could not be started; or the link is broken.
    pub async fn restart_service(&self, name: ServiceName) -> Result<(), ProtocolError> {
        self.order_service(ServiceOrder::Restart { name }).await
    }

    /// All services that were ever started, by name.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn services(&self) -> Result<Vec<ServiceStatus>, ProtocolError> {
        match self.ask(&Request::Service { order: ServiceOrder::Status }).await? {
            Reply::Services { services } => Ok(services),
            other => Err(unexpected(&other)),
        }
    }

    /// The newest output of a service.
    ///
    /// # Errors
    /// It is unknown, or the link is broken.
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
