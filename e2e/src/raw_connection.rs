//! A TCP connection on which a test writes every byte itself: for requests that a well-behaved client never sends.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

pub struct RawConnection {
    stream: TcpStream,
}

impl RawConnection {
    /// Connects to this port on loopback.
    #[must_use]
    #[track_caller]
    pub fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connecting");
        stream.set_read_timeout(Some(Duration::from_secs(90))).expect("setting a timeout");
        Self { stream }
    }

    /// Writes bytes; returns whether the server still accepted them.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Shuts down the write side.
    pub fn finish(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Reads until the server closes the connection; panics if the server sends nothing for 90 seconds.
    #[track_caller]
    pub fn read_to_end(&mut self) -> String {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => bytes.extend_from_slice(&buffer[..length]),
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    panic!(
                        "the server has not closed the connection; so far: {}",
                        String::from_utf8_lossy(&bytes)
                    )
                }
                // A reset also ends the connection.
                Err(_) => break,
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a whole request and returns the response.
    #[track_caller]
    pub fn exchange(port: u16, request: &str) -> String {
        let mut connection = Self::open(port);
        connection.write(request.as_bytes());
        connection.read_to_end()
    }
}
