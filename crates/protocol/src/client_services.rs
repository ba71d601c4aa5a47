//! The host's side of the service requests.

use crate::client::{GuestClient, check_refused, unexpected};
use crate::error::ProtocolError;
use crate::message::{Reply, Request};
use crate::service::{Endpoint, ServiceName, ServiceRequest, ServiceSpec, ServiceStatus};
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
        let order = ServiceRequest::Open { service, endpoint };
        let mut stream = self.open_request(&Request::Service { order }).await?;
        match check_refused(stream.receive_message::<Reply>().await?)? {
            Reply::Done => Ok(stream.into_raw()),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts a service if it is not running. Returns when it is ready.
    ///
    /// # Errors
    /// The service could not be started (the message includes its last lines of output), or the link is broken.
    pub async fn start_service(&self, service: ServiceSpec) -> Result<(), ProtocolError> {
        self.request_service(ServiceRequest::Start { service }).await
    }

    /// Stops a service. Returns when it has ended.
    ///
    /// # Errors
    /// The service is unknown, or the link is broken.
    pub async fn stop_service(&self, name: ServiceName) -> Result<(), ProtocolError> {
        self.request_service(ServiceRequest::Stop { name }).await
    }

    /// Stops and starts a service. Returns when it is ready.
    ///
    /// # Errors
    /// The service is unknown or could not be started, or the link is broken.
    pub async fn restart_service(&self, name: ServiceName) -> Result<(), ProtocolError> {
        self.request_service(ServiceRequest::Restart { name }).await
    }

    /// Lists every service that was ever started, sorted by name.
    pub async fn services(&self) -> Result<Vec<ServiceStatus>, ProtocolError> {
        match self.send_request(&Request::Service { order: ServiceRequest::Status }).await? {
            Reply::Services { services } => Ok(services),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the newest output of a service.
    ///
    /// # Errors
    /// The service is unknown, or the link is broken.
    pub async fn service_log(&self, name: ServiceName) -> Result<String, ProtocolError> {
        match self.send_request(&Request::Service { order: ServiceRequest::Log { name } }).await? {
            Reply::ServiceLog { text } => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    async fn request_service(&self, order: ServiceRequest) -> Result<(), ProtocolError> {
        match self.send_request(&Request::Service { order }).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}
