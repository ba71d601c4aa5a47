//! The host's side of the requests: greeting, processes, ports, figures.

use crate::error::ProtocolError;
use crate::exec::{CallKey, CallStatus, Exec, ExecEvent, ExecUpdate, Follow, TerminalSize};
use crate::kernel::{KernelAction, KernelStatus};
use crate::link::{IncomingStreams, Link, Side};
use crate::message::{GuestStats, Hello, Reply, Request, Welcome};
use crate::stream::{ByteStream, Incoming, MessageStream};
use crate::version::{OLDEST_VERSION, VERSION, settle};

/// Speaks to one guest. Cheap to clone.
#[derive(Clone)]
pub struct GuestClient {
    link: Link,
    /// What both sides have settled on.
    version: u16,
}

impl GuestClient {
    /// Starts a link on a byte stream and greets the guest.
    ///
    /// # Errors
    /// The stream broke, or the two share no version.
    pub async fn connect(stream: impl ByteStream) -> Result<(Self, Welcome, IncomingStreams), ProtocolError> {
        let (link, incoming) = Link::start(stream, Side::Host);
        let mut client = Self { link, version: OLDEST_VERSION };
        let hello = Hello { newest_version: VERSION, oldest_version: OLDEST_VERSION };
        let Reply::Welcome(welcome) = client.ask(&Request::Hello(hello)).await? else {
            return Err(ProtocolError::Unexpected("an answer that is no welcome".into()));
        };
        let settled = settle(VERSION, OLDEST_VERSION, welcome.newest_version, welcome.oldest_version);
        client.version = settled.ok_or(ProtocolError::Version {
            guest_newest: welcome.newest_version,
            guest_oldest: welcome.oldest_version,
            host_newest: VERSION,
            host_oldest: OLDEST_VERSION,
        })?;
        Ok((client, welcome, incoming))
    }

    /// The link below.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) async fn begin(&self, request: &Request) -> Result<MessageStream, ProtocolError> {
        let mut stream = self.link.open().await?;
        stream.send(request).await?;
        Ok(stream)
    }

    pub(crate) async fn ask(&self, request: &Request) -> Result<Reply, ProtocolError> {
        let mut stream = self.begin(request).await?;
        refuse(stream.receive_message::<Reply>().await?)
    }

    async fn order(&self, request: &Request) -> Result<(), ProtocolError> {
        match self.ask(request).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Checks that the guest answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn ping(&self) -> Result<(), ProtocolError> {
        self.order(&Request::Ping).await
    }

    /// Starts a call, or follows it where the guest knows its key.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn exec(&self, exec: Exec, follow: Follow) -> Result<CallFollower, ProtocolError> {
        let follow = follow.for_version(self.version);
        let stream = self.begin(&Request::Exec { exec, follow }).await?;
        Ok(CallFollower { stream })
    }

    /// Follows a call from a sequence number.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn follow(
        &self,
        key: CallKey,
        from_sequence: u64,
        follow: Follow,
    ) -> Result<CallFollower, ProtocolError> {
        let follow = follow.for_version(self.version);
        let stream = self.begin(&Request::Follow { key, from_sequence, follow }).await?;
        Ok(CallFollower { stream })
    }

    /// What became of a call?
    ///
    /// # Errors
    /// The link is broken.
    pub async fn call_status(&self, key: CallKey) -> Result<CallStatus, ProtocolError> {
        match self.ask(&Request::CallStatus { key }).await? {
            Reply::Call(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Opens a call's standard input; see [`CallInput`].
    ///
    /// # Errors
    /// The link is broken.
    pub async fn input(&self, key: CallKey) -> Result<CallInput, ProtocolError> {
        Ok(CallInput { stream: self.begin(&Request::Input { key }).await? })
    }

    /// Sends a signal to a call's process group.
    ///
    /// # Errors
    /// The call is unknown or has ended.
    pub async fn signal(&self, key: CallKey, signal: i32) -> Result<(), ProtocolError> {
        self.order(&Request::Signal { key, signal }).await
    }

    /// Ends a call and all its processes; returns when it has ended.
    ///
    /// # Errors
    /// The call is unknown.
    pub async fn kill(&self, key: CallKey) -> Result<(), ProtocolError> {
        self.order(&Request::Kill { key }).await
    }

    /// Changes the size of a call's terminal.
    ///
    /// # Errors
    /// The call is unknown or has no terminal.
    pub async fn resize(&self, key: CallKey, size: TerminalSize) -> Result<(), ProtocolError> {
        self.order(&Request::Resize { key, size }).await
    }

    /// Lets the guest drop a call's output.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn forget(&self, key: CallKey) -> Result<(), ProtocolError> {
        self.order(&Request::Forget { key }).await
    }

    /// Connects to a port on the sandbox's loopback.
    ///
    /// # Errors
    /// Nothing listens there.
    pub async fn connect_port(&self, port: u16) -> Result<impl ByteStream + use<>, ProtocolError> {
        let mut stream = self.begin(&Request::Connect { port }).await?;
        match refuse(stream.receive_message::<Reply>().await?)? {
            Reply::Done => Ok(stream.into_raw()),
            other => Err(unexpected(&other)),
        }
    }

    /// The ports that something in the sandbox listens on.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn ports(&self) -> Result<Vec<u16>, ProtocolError> {
        match self.ask(&Request::Ports).await? {
            Reply::Ports { ports } => Ok(ports),
            other => Err(unexpected(&other)),
        }
    }

    /// The kernels of the image, and which of them run.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn kernels(&self) -> Result<Vec<KernelStatus>, ProtocolError> {
        match self.ask(&Request::Kernels).await? {
            Reply::Kernels { kernels } => Ok(kernels),
            other => Err(unexpected(&other)),
        }
    }

    /// Interrupts or restarts a kernel that runs.
    ///
    /// # Errors
    /// It does not run.
    pub async fn kernel(&self, name: String, action: KernelAction) -> Result<(), ProtocolError> {
        self.order(&Request::Kernel { name, action }).await
    }

    /// Figures of the sandbox as the guest sees them.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn stats(&self) -> Result<GuestStats, ProtocolError> {
        match self.ask(&Request::Stats).await? {
            Reply::Stats(stats) => Ok(stats),
            other => Err(unexpected(&other)),
        }
    }
}

pub(crate) fn refuse(reply: Reply) -> Result<Reply, ProtocolError> {
    match reply {
        Reply::Refused { message } => Err(ProtocolError::Refused(message)),
        other => Ok(other),
    }
}

pub(crate) fn unexpected(reply: &Reply) -> ProtocolError {
    ProtocolError::Unexpected(format!("an answer of the wrong kind: {reply:?}").chars().take(200).collect())
}

/// Follows one call.
pub struct CallFollower {
    stream: MessageStream,
}

impl CallFollower {
    /// What happens next; after [`ExecEvent::Ended`] there is nothing more. Cancel safe.
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

/// Writes to a call's standard input.
pub struct CallInput {
    stream: MessageStream,
}

impl CallInput {
    /// Writes; waits while the process does not read.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        self.stream.send_data(data).await
    }

    /// Closes the input: the process reads its end.
    ///
    /// # Errors
    /// The call is unknown or has ended.
    pub async fn finish(mut self) -> Result<(), ProtocolError> {
        self.stream.send_data_end().await?;
        refuse(self.stream.receive_message::<Reply>().await?).map(drop)
    }
}
