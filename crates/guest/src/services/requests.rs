//! Serves the host's service requests.

use std::rc::Rc;

use protocol::{Endpoint, MessageStream, ProtocolError, Reply, ServiceOrder, ServiceSpec};
use tokio::io::copy_bidirectional_with_sizes;

use super::{ServiceFailure, Services, connect};
use crate::guest::Guest;
use crate::ports::COPY_BYTES;
use crate::serve::answer;

pub(crate) async fn serve(
    guest: &Rc<Guest>,
    mut stream: MessageStream,
    order: ServiceOrder,
) -> Result<(), ProtocolError> {
    let answered = match order {
        ServiceOrder::Open { service, endpoint } => return open(guest, stream, &service, &endpoint).await,
        ServiceOrder::Start { service } => Services::acquire(guest, &service).await.map(|_| Reply::Done),
        ServiceOrder::Status => Ok(Reply::Services { services: guest.services.status() }),
        ServiceOrder::Stop { name } => guest.services.stop(&name).await.map(|()| Reply::Done),
        ServiceOrder::Restart { name } => Services::restart(guest, &name).await.map(|()| Reply::Done),
        ServiceOrder::Log { name } => guest.services.log(&name).map(|text| Reply::ServiceLog { text }),
    };
    answer(&mut stream, &answered.unwrap_or_else(refused)).await
}

async fn open(
    guest: &Rc<Guest>,
    mut stream: MessageStream,
    spec: &ServiceSpec,
    endpoint: &Endpoint,
) -> Result<(), ProtocolError> {
    let held = match Services::acquire(guest, spec).await {
        Ok(held) => held,
        Err(failure) => return answer(&mut stream, &refused(failure)).await,
    };
    let mut connection = match connect(endpoint).await {
        Ok(connection) => connection,
        Err(error) => {
            let message = format!("connecting to the service `{}`: {error}", spec.name);
            return answer(&mut stream, &Reply::Refused { message }).await;
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
