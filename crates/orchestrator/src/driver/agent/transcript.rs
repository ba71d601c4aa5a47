//! The output of a process as text: both streams in order, without terminal control sequences. It is complete; the
//! agent truncates what is too long for a prompt and keeps the whole.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use protocol::{DisplayReader, OutputChunk, OutputStream};

/// Maximum number of images per call.
const MAX_IMAGES: usize = 4;
/// How many bytes are kept from the start and from the end: more than the guest returns for one process.
const HEAD_BYTES: usize = 16 * 1024 * 1024;
const TAIL_BYTES: usize = 8 * 1024 * 1024;

/// Collects output as it arrives.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    head: Vec<u8>,
    tail: Vec<u8>,
    left_out: u64,
    displays: DisplayReader,
    images: Vec<model::Image>,
}

impl Transcript {
    /// Adds a chunk: text as it is, and the text and images that a kernel displays.
    pub(super) fn take_chunk(&mut self, chunk: &OutputChunk) {
        if chunk.stream != OutputStream::Display {
            return self.take(&chunk.bytes);
        }
        for display in self.displays.take(&chunk.bytes) {
            let text = display.text();
            if !text.is_empty() {
                self.take(format!("{text}\n").as_bytes());
            }
            for media_type in ["image/png", "image/jpeg"] {
                let Some(data) = display.data.get(media_type).and_then(serde_json::Value::as_str) else {
                    continue;
                };
                if let Ok(bytes) = STANDARD.decode(data.replace('\n', ""))
                    && self.images.len() < MAX_IMAGES
                {
                    self.images.push(model::Image { media_type: media_type.to_owned(), bytes });
                }
            }
        }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        let room = HEAD_BYTES.saturating_sub(self.head.len());
        let (first, rest) = bytes.split_at(bytes.len().min(room));
        self.head.extend_from_slice(first);
        self.tail.extend_from_slice(rest);
        if self.tail.len() > TAIL_BYTES * 2 {
            self.shrink();
        }
    }

    /// Marks bytes that were not kept.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.take(dropped(bytes).as_bytes());
    }

    fn shrink(&mut self) {
        let excess = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
        self.left_out += excess as u64;
    }

    /// The text and the images.
    pub(super) fn into_parts(mut self) -> (String, Vec<model::Image>) {
        let images = std::mem::take(&mut self.images);
        (self.into_text(), images)
    }

    /// The text, with a line that says how many bytes were left out.
    fn into_text(mut self) -> String {
        self.shrink();
        if self.left_out > 0 {
            self.head.extend_from_slice(dropped(self.left_out).as_bytes());
        }
        self.head.append(&mut self.tail);
        clean(&self.head)
    }
}

/// The placeholder for bytes that were not kept.
pub(super) fn dropped(bytes: u64) -> String {
    format!("\n[{bytes} bytes of the output were too much to keep]\n")
}

/// Removes terminal control sequences such as colors, and text that was overwritten.
fn clean(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => match characters.next() {
                Some('[') => while characters.next().is_some_and(|c| !c.is_ascii_alphabetic()) {},
                Some(']') => while characters.next().is_some_and(|c| c != '\u{7}') {},
                _ => {}
            },
            '\r' if characters.peek() == Some(&'\n') => {}
            // A progress bar: only its last state counts.
            '\r' => {
                let line = plain.rfind('\n').map_or(0, |at| at + 1);
                plain.truncate(line);
            }
            '\u{8}' => drop(plain.pop()),
            '\0' => {}
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcript_keeps_all_output_and_marks_gaps() {
        let mut transcript = Transcript::default();
        let lines: String = (0..20_000).map(|line| format!("line {line:06}\n")).collect();
        transcript.take(lines.as_bytes());
        transcript.skip(77);
        transcript.take(b"caf\xff\n");
        let missing = "\n[77 bytes of the output were too much to keep]\n";
        assert_eq!(transcript.into_text(), format!("{lines}{missing}caf\u{fffd}\n"));
    }

    #[test]
    fn transcript_memory_is_bounded() {
        let mut transcript = Transcript::default();
        let piece = vec![b'x'; 1024 * 1024];
        (0..64).for_each(|_| transcript.take(&piece));
        transcript.take(b"\nend\n");
        let text = transcript.into_text();
        assert!(text.len() < HEAD_BYTES + TAIL_BYTES + 100 && text.ends_with("\nend\n"), "{}", text.len());
        assert!(text.contains("bytes of the output were too much to keep"));
    }

    #[test]
    fn terminal_control_sequences_are_removed() {
        assert_eq!(clean(b"\x1b[31mred\x1b[0m\r\n10%\r50%\r100%\nok"), "red\n100%\nok");
    }
}
