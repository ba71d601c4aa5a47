//! Parses the messages of a VNC viewer (RFC 6143 plus the extensions of noVNC and TigerVNC), so that those that act
//! on the desktop can be dropped while another user controls it. Pure: bytes in, bytes out.
//!
//! The parser and the VNC server must agree on where each message ends. If they differed by one byte, a client could
//! hide a key press inside a harmless message. Therefore only what both parse alike is accepted: two protocol
//! versions, no authentication, pointer messages of one length, and clipboard messages whose content has the
//! announced length.

use bytes::{Buf, Bytes, BytesMut};

/// The longest message that is buffered. No viewer sends longer ones.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// The phase of the RFB connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Version,
    Security,
    Init,
    Messages,
}

/// What is forwarded of a viewer's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputMode {
    /// Everything.
    Full,
    /// Everything except keys, pointer, clipboard and screen size.
    ViewOnly,
}

/// The client sent something that is not a valid viewer message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidViewerMessage;

/// Splits a viewer's byte stream into messages and filters them.
#[derive(Debug)]
pub(crate) struct ViewerFilter {
    stage: Stage,
    buffer: BytesMut,
}

impl ViewerFilter {
    pub(crate) fn new() -> Self {
        Self { stage: Stage::Version, buffer: BytesMut::new() }
    }

    /// Adds received bytes and returns those to forward to the desktop. An incomplete message is kept for the next
    /// call.
    pub(crate) fn take(
        &mut self,
        received: &[u8],
        input_mode: InputMode,
    ) -> Result<Bytes, InvalidViewerMessage> {
        self.buffer.extend_from_slice(received);
        let mut forwarded = BytesMut::new();
        while let Some(length) = self.next_length()? {
            if self.buffer.len() < length {
                break;
            }
            let message = self.buffer.split_to(length);
            self.check(&message)?;
            let acts = self.stage == Stage::Messages && acts(message[0]);
            if self.stage == Stage::Messages && message[0] == SET_ENCODINGS {
                forwarded.extend_from_slice(&plain_encodings(&message));
            } else if !acts || input_mode == InputMode::Full {
                forwarded.extend_from_slice(&message);
            }
            self.stage = match self.stage {
                Stage::Version => Stage::Security,
                Stage::Security => Stage::Init,
                Stage::Init | Stage::Messages => Stage::Messages,
            };
        }
        Ok(forwarded.freeze())
    }

    /// Rejects a complete message that the VNC server might parse differently.
    fn check(&self, message: &[u8]) -> Result<(), InvalidViewerMessage> {
        let is_known = match self.stage {
            // Version 3.3 has no security byte, and the server would still accept it.
            Stage::Version => VERSIONS.contains(&message),
            Stage::Security => message == [NO_PASSWORD],
            Stage::Init => true,
            Stage::Messages => message[0] != CUT_TEXT || is_plain_clipboard(message),
        };
        if is_known { Ok(()) } else { Err(InvalidViewerMessage) }
    }

    /// The length of the next message. `None` if more bytes are needed to determine it.
    fn next_length(&self) -> Result<Option<usize>, InvalidViewerMessage> {
        let buffer = &self.buffer[..];
        let Some(first) = buffer.first() else { return Ok(None) };
        let short = |at: usize| buffer.get(at..at + 2).map(|mut two| usize::from(two.get_u16()));
        let long = |at: usize| buffer.get(at..at + 4).map(|mut four| four.get_i32().unsigned_abs() as usize);
        let length = match (self.stage, *first) {
            (Stage::Version, _) => Some(12),
            (Stage::Security | Stage::Init, _) => Some(1),
            (Stage::Messages, SET_PIXEL_FORMAT) => Some(20),
            (Stage::Messages, SET_ENCODINGS) => short(2).map(|count| 4 + 4 * count),
            (Stage::Messages, UPDATE_REQUEST | CONTINUOUS_UPDATES) => Some(10),
            (Stage::Messages, KEY) => Some(8),
            (Stage::Messages, POINTER) => Some(6),
            // A negative length marks the extended clipboard format.
            (Stage::Messages, CUT_TEXT) => long(4).map(|length| 8 + length),
            (Stage::Messages, FENCE) => buffer.get(8).map(|length| 9 + usize::from(*length)),
            (Stage::Messages, XVP) => Some(4),
            (Stage::Messages, DESKTOP_SIZE) => buffer.get(6).map(|count| 8 + 16 * usize::from(*count)),
            (Stage::Messages, QEMU) => Some(12),
            (Stage::Messages, _) => return Err(InvalidViewerMessage),
        };
        if length.is_some_and(|length| length > MAX_MESSAGE) {
            return Err(InvalidViewerMessage);
        }
        Ok(length)
    }
}

/// The versions in which the viewer sends a security type, then the shared flag, then messages.
const VERSIONS: [&[u8]; 2] = [b"RFB 003.008\n", b"RFB 003.007\n"];
const NO_PASSWORD: u8 = 1;
/// The encoding by which a viewer announces longer pointer messages, for buttons beyond the eighth.
const LONG_POINTERS: [u8; 4] = (-316_i32).to_be_bytes();
const SET_PIXEL_FORMAT: u8 = 0;
const SET_ENCODINGS: u8 = 2;
const UPDATE_REQUEST: u8 = 3;
const KEY: u8 = 4;
const POINTER: u8 = 5;
const CUT_TEXT: u8 = 6;
const CONTINUOUS_UPDATES: u8 = 150;
const FENCE: u8 = 248;
const XVP: u8 = 250;
const DESKTOP_SIZE: u8 = 251;
/// Key events with scan codes. The other messages of this type are about audio.
const QEMU: u8 = 255;

/// Whether a message type acts on the desktop.
fn acts(kind: u8) -> bool {
    matches!(kind, KEY | POINTER | CUT_TEXT | XVP | DESKTOP_SIZE | QEMU)
}

/// Removes the encoding for longer pointer messages. The server then never enables it, and the viewer works without
/// it.
fn plain_encodings(message: &[u8]) -> Vec<u8> {
    let (head, list) = message.split_at(4);
    let kept: Vec<u8> =
        list.chunks(4).filter(|encoding| *encoding != LONG_POINTERS).flatten().copied().collect();
    // The count cannot exceed the original one, which fits into two bytes.
    let count = u16::try_from(kept.len() / 4).unwrap_or_default().to_be_bytes();
    [&head[..2], &count, &kept].concat()
}

/// Whether a clipboard message has the length that its content implies. Of the extended format, a server reads as
/// much as the flags announce and parses whatever follows as the next message.
fn is_plain_clipboard(message: &[u8]) -> bool {
    const TELLS: u32 = 1 << 24;
    const PROVIDES: u32 = 1 << 28;
    const ASKS: [u32; 3] = [1 << 25, 1 << 26, 1 << 27];
    let (mut length, content) = (&message[4..8], &message[8..]);
    if length.get_i32() >= 0 {
        return true;
    }
    let Some(mut flags) = content.get(..4) else { return false };
    let flags = flags.get_u32();
    let action = flags & 0xff00_0000;
    if action & TELLS != 0 {
        return content.len() == 4 + 4 * (flags & 0xffff).count_ones() as usize;
    }
    action == PROVIDES || (ASKS.contains(&action) && content.len() == 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: &[u8] = b"RFB 003.008\n\x01\x01";
    const ENCODINGS: &[u8] = &[2, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 1];
    const UPDATE: &[u8] = &[3, 1, 0, 0, 0, 0, 5, 0, 3, 32];
    const KEY_PRESS: &[u8] = &[4, 1, 0, 0, 0, 0, 0, 97];
    const CLICK: &[u8] = &[5, 1, 0, 10, 0, 20];
    const PASTE: &[u8] = &[6, 0, 0, 0, 0, 0, 0, 2, b'h', b'i'];

    fn session() -> Vec<u8> {
        [GREETING, ENCODINGS, KEY_PRESS, UPDATE, CLICK, PASTE, UPDATE].concat()
    }

    #[test]
    fn view_only_viewer_receives_updates_and_sends_no_input() {
        let mut viewer = ViewerFilter::new();
        let forwarded = viewer.take(&session(), InputMode::ViewOnly).unwrap();
        assert_eq!(forwarded, [GREETING, ENCODINGS, UPDATE, UPDATE].concat());
        assert_eq!(ViewerFilter::new().take(&session(), InputMode::Full).unwrap(), session());
    }

    #[test]
    fn messages_are_parsed_in_chunks_of_any_size() {
        let whole = ViewerFilter::new().take(&session(), InputMode::ViewOnly).unwrap();
        for size in 1..session().len() {
            let mut viewer = ViewerFilter::new();
            let mut forwarded = Vec::new();
            for piece in session().chunks(size) {
                forwarded.extend(viewer.take(piece, InputMode::ViewOnly).unwrap());
            }
            assert_eq!(forwarded, whole, "pieces of {size}");
        }
    }

    #[test]
    fn unsupported_rfb_versions_are_rejected() {
        for version in
            [b"RFB 003.003\n", b"RFB 003.005\n", b"RFB 3.3    \n", b"RFB 003.009\n", b"RFB 004.000\n"]
        {
            assert_eq!(
                ViewerFilter::new().take(version, InputMode::ViewOnly),
                Err(InvalidViewerMessage),
                "{version:?}"
            );
            assert_eq!(
                ViewerFilter::new().take(version, InputMode::Full),
                Err(InvalidViewerMessage),
                "{version:?}"
            );
        }
        for version in VERSIONS {
            let mut viewer = ViewerFilter::new();
            assert_eq!(viewer.take(version, InputMode::ViewOnly).unwrap(), version);
            assert_eq!(
                viewer.take(&[2], InputMode::ViewOnly),
                Err(InvalidViewerMessage),
                "only without a password"
            );
        }
    }

    #[test]
    fn extended_pointer_encoding_is_removed() {
        let encodings = [2, 0, 0, 3, 0, 0, 0, 7, 0xff, 0xff, 0xfe, 0xc4, 0, 0, 0, 1];
        let kept = [2, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 1];
        let only = [2, 0, 0, 1, 0xff, 0xff, 0xfe, 0xc4];
        // The eighth button in the standard pointer message.
        let pressed = [5, 0x80, 0, 10, 0, 20];
        let received = [GREETING, &encodings, &pressed, UPDATE, &only, &pressed, UPDATE].concat();
        let free = ViewerFilter::new().take(&received, InputMode::Full).unwrap();
        assert_eq!(free, [GREETING, &kept, &pressed, UPDATE, &[2, 0, 0, 0], &pressed, UPDATE].concat());
        let tied = ViewerFilter::new().take(&received, InputMode::ViewOnly).unwrap();
        assert_eq!(tied, [GREETING, &kept, UPDATE, &[2, 0, 0, 0], UPDATE].concat());
    }

    /// A viewer that may still send input must not be able to desynchronise the server's parser.
    #[test]
    fn clipboard_with_wrong_length_is_rejected() {
        let clipboard = |flags: u32, more: usize| {
            let length = -i32::try_from(4 + more).unwrap();
            let head = [&[6, 0, 0, 0][..], &length.to_be_bytes(), &flags.to_be_bytes()].concat();
            [GREETING, &head, &vec![0; more]].concat()
        };
        for (flags, more, is_taken) in [
            (1 << 24 | 1, 4, true),
            (1 << 24 | 1, 8, false),
            (1 << 24, 4, false),
            (1 << 25 | 1, 0, true),
            (1 << 27 | 1, 0, true),
            (1 << 27 | 1, 8, false),
            (1 << 28 | 1, 20, true),
            (0, 8, false),
        ] {
            let taken = ViewerFilter::new().take(&clipboard(flags, more), InputMode::Full);
            assert_eq!(taken.is_ok(), is_taken, "{flags:x} {more}");
        }
        let short = [GREETING, &[6, 0, 0, 0, 0xff, 0xff, 0xff, 0xfe, 0, 0]].concat();
        assert_eq!(ViewerFilter::new().take(&short, InputMode::Full), Err(InvalidViewerMessage));
    }

    #[test]
    fn unknown_messages_are_rejected() {
        let mut viewer = ViewerFilter::new();
        viewer.take(GREETING, InputMode::Full).unwrap();
        assert_eq!(viewer.take(&[99, 0, 0], InputMode::Full), Err(InvalidViewerMessage));
        let mut viewer = ViewerFilter::new();
        viewer.take(GREETING, InputMode::Full).unwrap();
        let endless = [6, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff];
        assert_eq!(viewer.take(&endless, InputMode::Full), Err(InvalidViewerMessage));
    }
}
