//! Connections to ports and sockets inside the sandbox, and the list of listening ports.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use protocol::{MessageStream, ProtocolError, Reply};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_socket, socket_with,
};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;

use crate::reply::send_reply;

/// Size of the copy buffer for each direction.
pub(crate) const COPY_BYTES: usize = 16 * 1024;

/// Connects to a port on loopback and copies in both directions until both have ended.
pub(crate) async fn connect(mut stream: MessageStream, port: u16) -> Result<(), ProtocolError> {
    let mut connection = match dial(port).await {
        Ok(connection) => connection,
        Err(error) => {
            let message = match error.kind() {
                io::ErrorKind::ConnectionRefused => format!("nothing listens on port {port} in the sandbox"),
                _ => format!("connecting to port {port} in the sandbox: {error}"),
            };
            return send_reply(&mut stream, &Reply::Refused { message }).await;
        }
    };
    let _ = connection.set_nodelay(true);
    stream.send(&Reply::Done).await?;
    copy_bidirectional_with_sizes(&mut connection, &mut stream.into_raw(), COPY_BYTES, COPY_BYTES).await?;
    Ok(())
}

/// Connects to a port on the IPv4 or the IPv6 loopback address.
pub(crate) async fn dial(port: u16) -> io::Result<TcpStream> {
    match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(connection) => Ok(connection),
        Err(first) => TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.map_err(|_| first),
    }
}

/// Connects without waiting: a listener that does not accept must not block the thread.
pub(crate) fn dial_unix(path: &str) -> io::Result<std::os::unix::net::UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect_socket(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// The kernel's tables of TCP sockets, and the state code of a listening socket.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
const LISTENING: &str = "0A";

/// Returns the TCP ports that have a listener.
pub(crate) fn listening() -> Vec<u16> {
    let mut ports = BTreeSet::new();
    for table in TABLES {
        // A kernel without IPv6 lacks the second table.
        let text = std::fs::read_to_string(table).unwrap_or_default();
        ports.extend(text.lines().skip(1).filter_map(listening_port));
    }
    ports.into_iter().collect()
}

/// Parses a line of such a table: `0: 0100007F:1F90 00000000:0000 0A ...`.
fn listening_port(line: &str) -> Option<u16> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let local = fields.next()?;
    if fields.nth(1)? != LISTENING {
        return None;
    }
    u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::listening_port;

    #[test]
    fn listening_sockets_are_distinguished_from_connections() {
        assert_eq!(
            listening_port("   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000"),
            Some(8080)
        );
        assert_eq!(
            listening_port("   1: 0100007F:1F90 0100007F:A1B2 01 00000000:00000000 00:00000000"),
            None
        );
        assert_eq!(listening_port("garbage"), None);
    }
}
