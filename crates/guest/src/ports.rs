//! Streams to ports inside the sandbox.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use protocol::{MessageStream, ProtocolError, Reply};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;

use crate::serve::answer;

/// Bytes on their way in one direction.
pub(crate) const COPY_BYTES: usize = 16 * 1024;

/// Connects to a port on loopback and copies both ways until both have ended.
pub(crate) async fn connect(mut stream: MessageStream, port: u16) -> Result<(), ProtocolError> {
    let mut connection = match dial(port).await {
        Ok(connection) => connection,
        Err(error) => {
            let message = match error.kind() {
                io::ErrorKind::ConnectionRefused => format!("nothing listens on port {port} in the sandbox"),
                _ => format!("connecting to port {port} in the sandbox: {error}"),
            };
            return answer(&mut stream, &Reply::Refused { message }).await;
        }
    };
    let _ = connection.set_nodelay(true);
    stream.send(&Reply::Done).await?;
    copy_bidirectional_with_sizes(&mut connection, &mut stream.into_raw(), COPY_BYTES, COPY_BYTES).await?;
    Ok(())
}

async fn dial(port: u16) -> io::Result<TcpStream> {
    match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(connection) => Ok(connection),
        Err(first) => TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.map_err(|_| first),
    }
}
