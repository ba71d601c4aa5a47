//! The short message exchange between the owner and the first process of a sandbox, until that process becomes the
//! guest.
//!
//! The owner's end reads end-of-file once the guest is executed, or an error report before that.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::error::LaunchError;
use crate::spec::Report;

/// The maximum number of descriptors in one message.
const MAX_DESCRIPTORS: usize = 16;
/// The maximum size of one message in bytes.
pub(crate) const MAX_BYTES: usize = 4096;

/// A message from the owner to the first process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Message {
    /// The user ids are mapped.
    Mapped = b'm',
    /// Carries the layers of the root file system.
    Layers = b'l',
    /// The limits are set. Carries the cgroup files that the process writes to in order to enter its cgroup.
    Limited = b'c',
}

pub(crate) struct Channel(OwnedFd);

/// Creates a connected pair of channel ends.
pub(crate) fn pair() -> io::Result<(Channel, Channel)> {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((Channel(one), Channel(other)))
}

impl Channel {
    /// Sends bytes and descriptors in one message.
    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message; its bytes are empty if the other end is closed.
    pub(crate) fn receive(&self) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut bytes = vec![0; MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other("descriptors were lost on the way"));
        }
        bytes.truncate(received.bytes);
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        Ok((bytes, descriptors))
    }

    /// Sends a message from the owner to the first process.
    pub(crate) fn send_message(&self, message: Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(&[message as u8], descriptors)
    }

    /// Waits in the first process for a specific message and returns its descriptors. End-of-file means that the
    /// owner is gone.
    pub(crate) fn recv(&self, message: Message) -> io::Result<Vec<OwnedFd>> {
        let (bytes, descriptors) = self.receive()?;
        if bytes == [message as u8] {
            return Ok(descriptors);
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the launcher is gone"))
    }

    /// Reports from the first process to the owner why it cannot become the guest.
    pub(crate) fn report_error(&self, error: &LaunchError) {
        let mut text = serde_json::to_vec(&Report::from(error)).unwrap_or_default();
        text.truncate(MAX_BYTES);
        // If this fails too, the owner still sees that the process exited.
        let _ = self.send(&text, &[]);
    }

    /// Waits in the owner until the first process has become the guest (`None`) or has reported a failure.
    pub(crate) fn wait_for_guest(&self) -> io::Result<Option<Report>> {
        let (bytes, _) = self.receive()?;
        if bytes.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other)
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<&LaunchError> for Report {
    fn from(error: &LaunchError) -> Self {
        Self::Failed {
            step: error.step.clone(),
            cause: error.source.to_string(),
            errno: error.source.raw_os_error(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_carries_descriptors() {
        let (owner, child) = pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        owner.send_message(Message::Layers, &[writer.as_fd()]).unwrap();
        let received = child.recv(Message::Layers).unwrap();
        assert_eq!(received.len(), 1);
        rustix::io::write(&received[0], b"x").unwrap();
        let mut byte = [0; 1];
        rustix::io::read(&reader, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn recv_fails_if_the_owner_is_gone() {
        let (owner, child) = pair().unwrap();
        drop(owner);
        assert!(child.recv(Message::Mapped).is_err());
    }

    #[test]
    fn a_reported_error_names_the_step() {
        let (owner, child) = pair().unwrap();
        child.report_error(&LaunchError::new("mounting proc", io::Error::from_raw_os_error(1)));
        let Some(Report::Failed { step, errno, .. }) = owner.wait_for_guest().unwrap() else {
            panic!("no failure")
        };
        assert_eq!((step.as_str(), errno), ("mounting proc", Some(1)));
    }
}
