//! The SOCKS5 entry point (RFC 1928, user names by RFC 1929). Supports CONNECT only, not BIND or UDP ASSOCIATE.
//!
//! Implemented here because it is about one screen of code, and because the crates for it also resolve names and
//! connect, which only the gate may do.

use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::refusal::{ReasonCode, Refusal};
use crate::target::{Host, Target};

/// The first byte of a SOCKS5 client.
pub(crate) const VERSION: u8 = 5;
const NO_USER: u8 = 0;
const USER_NAME: u8 = 2;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

/// A client's request.
pub(crate) struct SocksRequest {
    pub(crate) user: Option<String>,
    /// The requested target, or what is wrong with the request.
    pub(crate) target: Result<Target, Refusal>,
}

/// Reads a client's request. Fails if the client does not speak the protocol or has disconnected.
pub(crate) async fn read_request<S>(stream: &mut S) -> std::io::Result<SocksRequest>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let user = agree_on_method(stream).await?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [version, command, _, kind] = head;
    if version != VERSION {
        return Err(std::io::Error::other("not SOCKS5"));
    }
    let host = match kind {
        1 => Ok(Host::Address(Ipv4Addr::from(read_bytes::<4, _>(stream).await?).into())),
        4 => {
            let address = Ipv6Addr::from(read_bytes::<16, _>(stream).await?);
            Ok(Host::Address(std::net::IpAddr::from(address).to_canonical()))
        }
        3 => {
            let name = read_short(stream).await?;
            String::from_utf8_lossy(&name).parse::<Host>().map_err(|error| error.to_string())
        }
        _ => return Err(std::io::Error::other("unknown address type")),
    };
    let port = u16::from_be_bytes(read_bytes::<2, _>(stream).await?);
    let bad = |reason: String| Refusal::failure(ReasonCode::BadRequest, reason);
    let target = match host {
        Ok(_) if command != CONNECT => Err(bad("SOCKS5 supports only CONNECT, not BIND or UDP".into())),
        Ok(_) if port == 0 => Err(bad("port 0 is not valid".into())),
        Ok(host) => Ok(Target { host, port }),
        Err(why) => Err(bad(why)),
    };
    Ok(SocksRequest { user, target })
}

async fn agree_on_method<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
) -> std::io::Result<Option<String>> {
    let [version] = read_bytes::<1, _>(stream).await?;
    if version != VERSION {
        return Err(std::io::Error::other("not SOCKS5"));
    }
    let methods = read_short(stream).await?;
    // The user name identifies the call, so it is preferred. The password is ignored.
    if methods.contains(&USER_NAME) {
        stream.write_all(&[VERSION, USER_NAME]).await?;
        let [_version] = read_bytes::<1, _>(stream).await?;
        let user = read_short(stream).await?;
        let _password = read_short(stream).await?;
        stream.write_all(&[1, 0]).await?;
        return Ok(String::from_utf8(user).ok());
    }
    if methods.contains(&NO_USER) {
        stream.write_all(&[VERSION, NO_USER]).await?;
        return Ok(None);
    }
    stream.write_all(&[VERSION, NO_METHOD]).await?;
    Err(std::io::Error::other("the client offers no supported authentication method"))
}

/// Tells the client that the connection is established.
pub(crate) async fn accept<S: AsyncWrite + Unpin>(stream: &mut S) -> std::io::Result<()> {
    answer(stream, 0).await
}

/// Sends the reply code that is closest to the refusal.
pub(crate) async fn refuse<S: AsyncWrite + Unpin>(stream: &mut S, refusal: &Refusal) -> std::io::Result<()> {
    let code = match refusal.code {
        code if code.is_policy() => 2,
        ReasonCode::ResolveFailed => 4,
        ReasonCode::ConnectFailed | ReasonCode::BadCertificate => 5,
        ReasonCode::Timeout => 6,
        ReasonCode::BadRequest => 7,
        _ => 1,
    };
    answer(stream, code).await
}

async fn answer<S: AsyncWrite + Unpin>(stream: &mut S, code: u8) -> std::io::Result<()> {
    stream.write_all(&[VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    stream.flush().await
}

async fn read_bytes<const N: usize, S: AsyncRead + Unpin>(stream: &mut S) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Reads a one-byte length and that many bytes.
async fn read_short<S: AsyncRead + Unpin>(stream: &mut S) -> std::io::Result<Vec<u8>> {
    let [length] = read_bytes::<1, _>(stream).await?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn reading_a_request_never_panics_and_ends(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut stream = tokio_join(bytes);
                let _ = read_request(&mut stream).await;
            });
        }
    }

    /// A stream that returns these bytes and discards what is written.
    fn tokio_join(bytes: Vec<u8>) -> impl AsyncRead + AsyncWrite + Unpin {
        tokio::io::join(std::io::Cursor::new(bytes), tokio::io::sink())
    }
}
