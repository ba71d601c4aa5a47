//! Parses server-sent events. Does no I/O; `http.rs` reads the bytes and enforces timeouts.

/// The maximum size of an event: an image or a complete answer fits, an endless line does not.
const MAX_BYTES: usize = 32 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SseEvent {
    /// The event's name; empty if there is none.
    pub(crate) name: String,
    /// The data; lines are joined by line feeds.
    pub(crate) data: String,
}

/// The event exceeds the maximum size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

/// An incremental decoder that accepts pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct SseDecoder {
    line: Vec<u8>,
    name: String,
    data: Vec<u8>,
    has_data: bool,
    after_return: bool,
    has_begun: bool,
}

impl SseDecoder {
    /// Returns the events that these bytes complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, TooLong> {
        let mut events = Vec::new();
        for byte in bytes {
            let ends_return = std::mem::replace(&mut self.after_return, *byte == b'\r');
            match byte {
                b'\n' if ends_return => {}
                b'\n' | b'\r' => events.extend(self.end_line()),
                other => self.line.push(*other),
            }
            if self.line.len() + self.data.len() > MAX_BYTES {
                return Err(TooLong);
            }
        }
        Ok(events)
    }

    /// Returns the last event at the end of the stream: some servers omit the final empty line.
    pub(crate) fn finish(mut self) -> Option<SseEvent> {
        let whole = if self.line.is_empty() { None } else { self.end_line() };
        whole.or_else(|| self.end_event())
    }

    fn end_line(&mut self) -> Option<SseEvent> {
        let mut line = std::mem::take(&mut self.line);
        if !std::mem::replace(&mut self.has_begun, true) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        if line.is_empty() {
            return self.end_event();
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            // Ignores `id`, `retry`, comments and unknown fields.
            _ => {}
        }
        None
    }

    fn end_event(&mut self) -> Option<SseEvent> {
        let name = std::mem::take(&mut self.name);
        let data = std::mem::take(&mut self.data);
        let data = String::from_utf8(data)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        std::mem::take(&mut self.has_data).then_some(SseEvent { name, data })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut decoder = SseDecoder::default();
        let mut events: Vec<SseEvent> = Vec::new();
        for piece in pieces {
            events.extend(decoder.push(piece).unwrap());
        }
        events.extend(decoder.finish());
        events.into_iter().map(|event| (event.name, event.data)).collect()
    }

    fn pair(name: &str, data: &str) -> (String, String) {
        (name.into(), data.into())
    }

    #[test]
    fn line_endings_comments_and_multiple_data_lines_are_parsed() {
        let text = b"\xef\xbb\xbfevent: a\r\ndata: 1\r\ndata:2\r\n\r\n: comment\n\nid: 7\ndata\n\nevent: none\n\rdata:  x\r\r";
        assert_eq!(decode(&[text]), [pair("a", "1\n2"), pair("", ""), pair("", " x")]);
    }

    #[test]
    fn an_event_without_its_last_empty_line_still_counts() {
        assert_eq!(decode(&[b"data: [DONE]"]), [pair("", "[DONE]")]);
        assert_eq!(decode(&[b"data: x\n"]), [pair("", "x")]);
        assert_eq!(decode(&[b"event: lonely\n"]), []);
    }

    #[test]
    fn an_endless_line_is_rejected() {
        let mut decoder = SseDecoder::default();
        let piece = vec![b'a'; 1 << 20];
        let result = (0..40).find_map(|_| decoder.push(&piece).err());
        assert_eq!(result, Some(TooLong));
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_the_events(
            bytes in proptest::collection::vec(prop_oneof![
                Just(b'\n'), Just(b'\r'), Just(b':'), Just(b'd'), Just(b' '), any::<u8>()
            ], 0..200),
            cuts in proptest::collection::vec(0usize..200, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(decode(&pieces), decode(&[&bytes]));
        }

        #[test]
        fn written_events_are_decoded(
            events in proptest::collection::vec(("[a-z]{0,8}", "[^\r\n]{0,40}(\n[^\r\n]{0,40}){0,3}"), 0..6),
        ) {
            let mut text = String::new();
            for (name, data) in &events {
                if !name.is_empty() {
                    text += &format!("event: {name}\n");
                }
                for line in data.split('\n') {
                    text += &format!("data: {line}\n");
                }
                text.push('\n');
            }
            prop_assert_eq!(decode(&[text.as_bytes()]), events);
        }
    }
}
