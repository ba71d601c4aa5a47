//! Serves the host's service requests.

use std::rc::Rc;

use protocol::{Endpoint, MessageStream, ProtocolError, Reply, ServiceRequest, ServiceSpec};
use tokio::io::copy_bidirectional_with_sizes;

use super::{ServiceFailure, Services, connect};
use crate::ports::COPY_BYTES;
use crate::reply::send_reply;

pub(crate) async fn serve(
    services: &Rc<Services>,
    mut stream: MessageStream,
    order: ServiceRequest,
) -> Result<(), ProtocolError> {
    let answered = match order {
        ServiceRequest::Open { service, endpoint } => {
            return open(services, stream, &service, &endpoint).await;
        }
        ServiceRequest::Start { service } => services.acquire(&service).await.map(|_| Reply::Done),
        ServiceRequest::Status => Ok(Reply::Services { services: services.status() }),
        ServiceRequest::Stop { name } => services.stop(&name).await.map(|()| Reply::Done),
        ServiceRequest::Restart { name } => services.restart(&name).await.map(|()| Reply::Done),
        ServiceRequest::Log { name } => services.log(&name).map(|text| Reply::ServiceLog { text }),
    };
    send_reply(&mut stream, &answered.unwrap_or_else(refused)).await
}

async fn open(
    services: &Rc<Services>,
    mut stream: MessageStream,
    spec: &ServiceSpec,
    endpoint: &Endpoint,
) -> Result<(), ProtocolError> {
    let held = match services.acquire(spec).await {
        Ok(held) => held,
        Err(failure) => return send_reply(&mut stream, &refused(failure)).await,
    };
    let mut connection = match connect(endpoint).await {
        Ok(connection) => connection,
        Err(error) => {
            let message = format!("connecting to the service `{}`: {error}", spec.name);
            return send_reply(&mut stream, &Reply::Refused { message }).await;
        }
    };
    stream.send(&Reply::Done).await?;
    let mut stream = stream.into_raw();
    let copied = copy_bidirectional_with_sizes(&mut connection, &mut stream, COPY_BYTES, COPY_BYTES).await;
    drop(held);
    copied?;
    Ok(())
}

fn refused(failure: ServiceFailure) -> Reply {
    Reply::Refused { message: failure.0 }
}
