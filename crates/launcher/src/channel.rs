//! The few words between the owner and the first process of a sandbox, until that process becomes the guest.
//!
//! The owner's end sees the end of the channel when the guest is executed, or an error before that.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::error::LaunchError;
use crate::spec::Report;

/// The most descriptors that one message carries.
const MAX_DESCRIPTORS: usize = 16;
/// The most bytes of one message.
pub(crate) const MAX_BYTES: usize = 4096;

/// What the owner tells the first process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Word {
    /// The user ids are mapped.
    Mapped = b'm',
    /// Here are the layers of the root file system.
    Layers = b'l',
    /// The limits are set; what comes with it are the doors into the control group.
    Limited = b'c',
}

/// One end of the channel.
pub(crate) struct Channel(OwnedFd);

/// Makes a channel.
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

    /// The next message; without bytes when the other end is gone.
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

    /// The owner says a word.
    pub(crate) fn say(&self, word: Word, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(&[word as u8], descriptors)
    }

    /// The first process waits for a word and what comes with it. The end means that the owner is gone.
    pub(crate) fn hear(&self, word: Word) -> io::Result<Vec<OwnedFd>> {
        let (bytes, descriptors) = self.receive()?;
        if bytes == [word as u8] {
            return Ok(descriptors);
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the launcher is gone"))
    }

    /// The first process tells why it cannot become the guest.
    pub(crate) fn complain(&self, error: &LaunchError) {
        let mut text = serde_json::to_vec(&Report::from(error)).unwrap_or_default();
        text.truncate(MAX_BYTES);
        // When even this fails the owner still sees that the process ended.
        let _ = self.send(&text, &[]);
    }

    /// The owner waits until the first process has become the guest, or has said why not.
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
    fn a_word_carries_descriptors() {
        let (owner, child) = pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        owner.say(Word::Layers, &[writer.as_fd()]).unwrap();
        let received = child.hear(Word::Layers).unwrap();
        assert_eq!(received.len(), 1);
        rustix::io::write(&received[0], b"x").unwrap();
        let mut byte = [0; 1];
        rustix::io::read(&reader, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn a_lost_owner_is_an_error() {
        let (owner, child) = pair().unwrap();
        drop(owner);
        assert!(child.hear(Word::Mapped).is_err());
    }

    #[test]
    fn a_complaint_names_the_step() {
        let (owner, child) = pair().unwrap();
        child.complain(&LaunchError::new("mounting proc", io::Error::from_raw_os_error(1)));
        let Some(Report::Failed { step, errno, .. }) = owner.wait_for_guest().unwrap() else {
            panic!("no failure")
        };
        assert_eq!((step.as_str(), errno), ("mounting proc", Some(1)));
    }
}
