//! How a VNC server parses a viewer's bytes: an independent parser, following the server's rules (RFC 6143 and the
//! extensions of TigerVNC), that shares no code with the one under test.

/// The state of the handshake.
#[derive(Default, Clone, Copy, PartialEq)]
enum Step {
    #[default]
    Version,
    Security,
    Init,
    Running,
    /// The server has closed the connection.
    Over,
}

/// Reads whole messages.
#[derive(Default)]
pub(crate) struct Server {
    step: Step,
    long_pointers: bool,
}

impl Server {
    /// Reads more bytes; returns how many messages acted on the desktop. The input must end at a message boundary.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> usize {
        let mut acted = 0;
        while !bytes.is_empty() && self.step != Step::Over {
            let (length, acts) = self.message(bytes);
            assert!(length <= bytes.len(), "half a message was passed on: {bytes:?}");
            acted += usize::from(acts && self.step == Step::Running);
            bytes = &bytes[length..];
        }
        acted
    }

    fn message(&mut self, bytes: &[u8]) -> (usize, bool) {
        match self.step {
            Step::Version => {
                let minor = std::str::from_utf8(&bytes[..bytes.len().min(12)]).ok();
                let minor =
                    minor.and_then(|text| text.strip_prefix("RFB 003.")?.trim_end().parse::<u32>().ok());
                self.step = match minor {
                    Some(7..) => Step::Security,
                    // The server chooses the security type; the viewer does not reply to that.
                    Some(_) => Step::Init,
                    None => Step::Over,
                };
                (12, false)
            }
            Step::Security => {
                self.step = if bytes[0] == 1 { Step::Init } else { Step::Over };
                (1, false)
            }
            Step::Init => {
                self.step = Step::Running;
                (1, false)
            }
            Step::Running | Step::Over => self.running(bytes),
        }
    }

    fn running(&mut self, bytes: &[u8]) -> (usize, bool) {
        let byte = |at: usize| usize::from(*bytes.get(at).expect("half a message was passed on"));
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|more| byte(at + more) as u8));
        match bytes[0] {
            0 => (20, false),
            2 => {
                let count = byte(2) * 256 + byte(3);
                self.long_pointers = (0..count).any(|number| word(4 + 4 * number) as i32 == -316);
                (4 + 4 * count, false)
            }
            3 | 150 => (10, false),
            4 => (8, true),
            5 => (if self.long_pointers && byte(1) & 0x80 != 0 { 7 } else { 6 }, true),
            6 => self.clipboard(word(4) as i32, || word(8)),
            248 => (9 + byte(8), false),
            251 => (8 + 16 * byte(6), true),
            255 if byte(1) == 0 => (12, true),
            _ => self.close(),
        }
    }

    fn clipboard(&mut self, length: i32, flags: impl Fn() -> u32) -> (usize, bool) {
        const LONGEST: usize = 256 * 1024;
        let said = length.unsigned_abs() as usize;
        if length >= 0 || said > LONGEST {
            return (8 + said, true);
        }
        if said < 4 {
            return self.close();
        }
        let flags = flags();
        match flags >> 24 {
            action if action & 1 != 0 => (12 + 4 * (flags & 0xffff).count_ones() as usize, true),
            0x10 => (8 + said, true),
            2 | 4 | 8 => (12, true),
            _ => self.close(),
        }
    }

    fn close(&mut self) -> (usize, bool) {
        self.step = Step::Over;
        (0, false)
    }
}
