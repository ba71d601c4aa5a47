//! Reassembles what a cell displays from chunks of output, and counts each chunk once.

use protocol::{Display, DisplayReader};

/// Complete records.
#[derive(Debug, PartialEq)]
pub(super) struct DisplayedRecords {
    pub(super) records: Vec<Display>,
    /// The size of all chunks that they came in.
    pub(super) bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct DisplayChunks {
    reader: DisplayReader,
    /// Records that share a chunk with an incomplete one.
    records: Vec<Display>,
    bytes: usize,
    /// The first chunk of an incomplete record.
    begun: Option<u64>,
}

impl DisplayChunks {
    /// Takes the chunk with this number. Returns `None` while a record is incomplete: then its chunks are requested again
    /// after a link failure.
    pub(super) fn take(&mut self, sequence: u64, bytes: &[u8]) -> Option<DisplayedRecords> {
        if self.begun.is_some_and(|begun| sequence <= begun) {
            self.skip();
        }
        self.begun.get_or_insert(sequence);
        self.records.extend(self.reader.take(bytes));
        self.bytes += bytes.len();
        if self.reader.is_waiting() {
            return None;
        }
        self.begun = None;
        Some(DisplayedRecords {
            records: std::mem::take(&mut self.records),
            bytes: std::mem::take(&mut self.bytes),
        })
    }

    /// Forgets an incomplete record because bytes are missing from the stream.
    pub(super) fn skip(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use protocol::DisplayKind;

    use super::*;

    fn encoded(text: &str) -> Vec<u8> {
        let mut display = Display::new(DisplayKind::Result);
        display.data.insert("text/plain".into(), text.into());
        display.encode().unwrap()
    }

    fn texts(found: &DisplayedRecords) -> Vec<String> {
        found.records.iter().map(Display::text).collect()
    }

    #[test]
    fn chunk_with_several_records_counts_once() {
        let chunk: Vec<u8> = ["a", "b", "c"].iter().flat_map(|text| encoded(text)).collect();
        let found = DisplayChunks::default().take(7, &chunk).unwrap();
        assert_eq!(texts(&found), ["a", "b", "c"]);
        assert_eq!(found.bytes, chunk.len());
    }

    #[test]
    fn all_chunks_of_a_record_count_also_when_they_come_again() {
        let record = encoded("long");
        let mut chunks = DisplayChunks::default();
        assert_eq!(chunks.take(7, &record[..5]), None);
        // After a link failure.
        assert_eq!(chunks.take(7, &record[..5]), None);
        let found = chunks.take(8, &record[5..]).unwrap();
        assert_eq!(texts(&found), ["long"]);
        assert_eq!(found.bytes, record.len());
        assert_eq!(chunks.take(9, b"").unwrap().bytes, 0);
    }

    #[test]
    fn complete_record_before_an_incomplete_one_is_kept() {
        let (first, second) = (encoded("first"), encoded("second"));
        let mut chunks = DisplayChunks::default();
        assert_eq!(chunks.take(7, &[&first[..], &second[..4]].concat()), None);
        let found = chunks.take(8, &second[4..]).unwrap();
        assert_eq!(texts(&found), ["first", "second"]);
    }
}
