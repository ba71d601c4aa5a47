//! The host's side of the link: the version handshake, processes, ports, kernels and statistics.

use crate::credentials::LinkCredentials;
use crate::error::ProtocolError;
use crate::exec::{CallKey, CallStatus, Exec, ExecEvent, ExecUpdate, Follow, TerminalSize};
use crate::kernel::{KernelAction, KernelStatus};
use crate::link::{IncomingStreams, Link, Side};
use crate::message::{GuestStats, Hello, Reply, Request, Welcome};
use crate::stream::{ByteStream, Incoming, MessageStream};
use crate::version::{OLDEST_VERSION, VERSION, negotiate};

/// A client for one guest. Cheap to clone.
#[derive(Clone)]
pub struct GuestClient {
    link: Link,
    /// The negotiated link version.
    version: u16,
}

impl GuestClient {
    /// Starts a link on `stream`, presents the credentials and negotiates the version with the guest.
    ///
    /// # Errors
    /// The stream failed, the guest refuses the credentials, or host and guest have no version in common.
    pub async fn connect(
        stream: impl ByteStream,
        credentials: LinkCredentials,
    ) -> Result<(Self, Welcome, IncomingStreams), ProtocolError> {
        let (link, incoming) = Link::start(stream, Side::Host);
        let mut client = Self { link, version: OLDEST_VERSION };
        let hello = Hello { newest_version: VERSION, oldest_version: OLDEST_VERSION, credentials };
        let welcome = match client.send_request(&Request::Hello(hello)).await? {
            Reply::Welcome(welcome) => welcome,
            Reply::LinkRefused(refusal) => return Err(ProtocolError::LinkRefused(refusal)),
            _ => return Err(ProtocolError::Unexpected("an answer that is no welcome".into())),
        };
        let settled = negotiate(VERSION, OLDEST_VERSION, welcome.newest_version, welcome.oldest_version);
        client.version = settled.ok_or(ProtocolError::Version {
            guest_newest: welcome.newest_version,
            guest_oldest: welcome.oldest_version,
            host_newest: VERSION,
            host_oldest: OLDEST_VERSION,
        })?;
        Ok((client, welcome, incoming))
    }

    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) async fn open_request(&self, request: &Request) -> Result<MessageStream, ProtocolError> {
        let mut stream = self.link.open().await?;
        stream.send(request).await?;
        Ok(stream)
    }

    pub(crate) async fn send_request(&self, request: &Request) -> Result<Reply, ProtocolError> {
        let mut stream = self.open_request(request).await?;
        check_refused(stream.receive_message::<Reply>().await?)
    }

    async fn send_command(&self, request: &Request) -> Result<(), ProtocolError> {
        match self.send_request(request).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Checks that the guest responds.
    pub async fn ping(&self) -> Result<(), ProtocolError> {
        self.send_command(&Request::Ping).await
    }

    /// Starts a call, or follows it if the guest already knows its key.
    pub async fn exec(&self, exec: Exec, follow: Follow) -> Result<CallFollower, ProtocolError> {
        let follow = follow.for_version(self.version);
        let stream = self.open_request(&Request::Exec { exec, follow }).await?;
        Ok(CallFollower { stream })
    }

    /// Follows a call, starting at a sequence number.
    pub async fn follow(
        &self,
        key: CallKey,
        from_sequence: u64,
        follow: Follow,
    ) -> Result<CallFollower, ProtocolError> {
        let follow = follow.for_version(self.version);
        let stream = self.open_request(&Request::Follow { key, from_sequence, follow }).await?;
        Ok(CallFollower { stream })
    }

    /// Returns the state or the result of a call.
    pub async fn call_status(&self, key: CallKey) -> Result<CallStatus, ProtocolError> {
        match self.send_request(&Request::CallStatus { key }).await? {
            Reply::Call(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Opens the standard input of a call.
    pub async fn input(&self, key: CallKey) -> Result<CallInput, ProtocolError> {
        Ok(CallInput { stream: self.open_request(&Request::Input { key }).await? })
    }

    /// Sends a signal to the process group of a call.
    ///
    /// # Errors
    /// The call is unknown or has ended.
    pub async fn signal(&self, key: CallKey, signal: i32) -> Result<(), ProtocolError> {
        self.send_command(&Request::Signal { key, signal }).await
    }

    /// Kills a call with all its processes. Returns when the call has ended.
    ///
    /// # Errors
    /// The call is unknown.
    pub async fn kill(&self, key: CallKey) -> Result<(), ProtocolError> {
        self.send_command(&Request::Kill { key }).await
    }

    /// Resizes the terminal of a call.
    ///
    /// # Errors
    /// The call is unknown or has no terminal.
    pub async fn resize(&self, key: CallKey, size: TerminalSize) -> Result<(), ProtocolError> {
        self.send_command(&Request::Resize { key, size }).await
    }

    /// Allows the guest to drop the output of a call.
    pub async fn forget(&self, key: CallKey) -> Result<(), ProtocolError> {
        self.send_command(&Request::Forget { key }).await
    }

    /// Connects to a port on the sandbox's loopback interface.
    ///
    /// # Errors
    /// Nothing listens on the port.
    pub async fn connect_port(&self, port: u16) -> Result<impl ByteStream + use<>, ProtocolError> {
        let mut stream = self.open_request(&Request::Connect { port }).await?;
        match check_refused(stream.receive_message::<Reply>().await?)? {
            Reply::Done => Ok(stream.into_raw()),
            other => Err(unexpected(&other)),
        }
    }

    /// Lists the ports that processes in the sandbox listen on.
    pub async fn ports(&self) -> Result<Vec<u16>, ProtocolError> {
        match self.send_request(&Request::Ports).await? {
            Reply::Ports { ports } => Ok(ports),
            other => Err(unexpected(&other)),
        }
    }

    /// Lists the kernels of the image and their states.
    pub async fn kernels(&self) -> Result<Vec<KernelStatus>, ProtocolError> {
        match self.send_request(&Request::Kernels).await? {
            Reply::Kernels { kernels } => Ok(kernels),
            other => Err(unexpected(&other)),
        }
    }

    /// Interrupts or restarts a running kernel.
    ///
    /// # Errors
    /// The kernel is not running.
    pub async fn kernel(&self, name: String, action: KernelAction) -> Result<(), ProtocolError> {
        self.send_command(&Request::Kernel { name, action }).await
    }

    /// Returns the sandbox statistics that the guest can see.
    pub async fn stats(&self) -> Result<GuestStats, ProtocolError> {
        match self.send_request(&Request::Stats).await? {
            Reply::Stats(stats) => Ok(stats),
            other => Err(unexpected(&other)),
        }
    }
}

pub(crate) fn check_refused(reply: Reply) -> Result<Reply, ProtocolError> {
    match reply {
        Reply::Refused { message } => Err(ProtocolError::Refused(message)),
        other => Ok(other),
    }
}

pub(crate) fn unexpected(reply: &Reply) -> ProtocolError {
    ProtocolError::Unexpected(format!("an answer of the wrong kind: {reply:?}").chars().take(200).collect())
}

pub struct CallFollower {
    stream: MessageStream,
}

impl CallFollower {
    /// Waits for the next update. [`ExecEvent::Ended`] is the last one. Cancel safe.
    ///
    /// # Errors
    /// The link is broken or the call is unknown.
    pub async fn next(&mut self) -> Result<ExecUpdate, ProtocolError> {
        match self.stream.receive().await? {
            Incoming::Output(chunk) => Ok(ExecUpdate::Output(chunk)),
            Incoming::Message(bytes) => match serde_json::from_slice::<ExecEvent>(&bytes) {
                Ok(event) => Ok(ExecUpdate::Event(event)),
                Err(error) => match serde_json::from_slice::<Reply>(&bytes) {
                    Ok(Reply::Refused { message }) => Err(ProtocolError::Refused(message)),
                    _ => Err(ProtocolError::Decode(error)),
                },
            },
            Incoming::Closed => Err(ProtocolError::Closed),
            Incoming::Data(_) | Incoming::DataEnd => {
                Err(ProtocolError::Unexpected("data where output was expected".into()))
            }
        }
    }
}

/// A writer for the standard input of a call.
pub struct CallInput {
    stream: MessageStream,
}

impl CallInput {
    /// Writes `data`; waits while the process does not read.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        self.stream.send_data(data).await
    }

    /// Closes standard input, so that the process reads end of file.
    ///
    /// # Errors
    /// The call is unknown or has ended.
    pub async fn finish(mut self) -> Result<(), ProtocolError> {
        self.stream.send_data_end().await?;
        check_refused(self.stream.receive_message::<Reply>().await?).map(drop)
    }
}
