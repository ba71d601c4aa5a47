//! Reads how many entries a zip claims to have, before anything parses its central directory: a zip reader keeps the
//! whole directory in memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Size of the end-of-central-directory record without its comment, and the maximum size of that comment.
const END_BYTES: u64 = 22;
const COMMENT_BYTES: u64 = 65_535;
const EOCD: &[u8] = b"PK\x05\x06";
/// The zip64 end-of-central-directory record, and the locator that points to it.
const ZIP64_END: &[u8] = b"PK\x06\x06";
const LOCATOR: &[u8] = b"PK\x06\x07";
const LOCATOR_BYTES: u64 = 20;
/// Offsets of the entry count in the two records.
const COUNT_AT: usize = 10;
const ZIP64_COUNT_AT: usize = 32;
/// Size of the chunks that are searched; two chunks overlap by one record.
const PIECE_BYTES: usize = 1 << 20;

/// The largest entry count that any end-of-central-directory record claims. Several positions may look like such a
/// record, and readers differ in which one they believe.
pub(crate) fn most_entries(file: &mut File) -> io::Result<u64> {
    let length = file.seek(SeekFrom::End(0))?;
    let start = length.saturating_sub(END_BYTES + COMMENT_BYTES + 4);
    let tail = read_at(file, start, length - start)?;
    let mut most = 0;
    for at in positions(&tail, EOCD) {
        most = most.max(u64::from(u16::from_le_bytes(number(&tail, at + COUNT_AT))));
        let Some(locator_at) = (start + at as u64).checked_sub(LOCATOR_BYTES) else { continue };
        let locator = read_at(file, locator_at, LOCATOR_BYTES)?;
        if locator.starts_with(LOCATOR) {
            let from = u64::from_le_bytes(number(&locator, 8));
            most = most.max(most_of_zip64_records(file, from, locator_at)?);
        }
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(most)
}

/// Searches the whole range, because data in front of the archive shifts the records behind the position that the
/// locator gives.
fn most_of_zip64_records(file: &mut File, from: u64, to: u64) -> io::Result<u64> {
    let (mut most, mut position) = (0, from);
    while position < to {
        let piece = read_at(file, position, (to - position).min(PIECE_BYTES as u64))?;
        for at in positions(&piece, ZIP64_END) {
            most = most.max(u64::from_le_bytes(number(&piece, at + ZIP64_COUNT_AT)));
        }
        if position + piece.len() as u64 >= to || piece.len() < PIECE_BYTES {
            break;
        }
        position += (PIECE_BYTES - ZIP64_COUNT_AT - 8) as u64;
    }
    Ok(most)
}

fn read_at(file: &mut File, position: u64, length: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(position))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn positions<'a>(bytes: &'a [u8], mark: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    bytes.windows(mark.len()).enumerate().filter(move |(_, window)| *window == mark).map(|(at, _)| at)
}

/// Returns zeros if the number is cut off.
fn number<const SIZE: usize>(bytes: &[u8], at: usize) -> [u8; SIZE] {
    bytes.get(at..at + SIZE).and_then(|part| part.try_into().ok()).unwrap_or([0; SIZE])
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn most(bytes: &[u8]) -> u64 {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        most_entries(&mut file).unwrap()
    }

    fn end(count: u16, comment: &[u8]) -> Vec<u8> {
        let mut record = EOCD.to_vec();
        record.extend([0; 4]);
        record.extend(count.to_le_bytes());
        record.extend(count.to_le_bytes());
        record.extend([0; 8]);
        record.extend(u16::try_from(comment.len()).unwrap().to_le_bytes());
        record.extend(comment);
        record
    }

    /// An archive whose zip64 record is `shift` bytes after the position that its locator gives.
    fn large(count: u64, shift: usize) -> Vec<u8> {
        let mut bytes = vec![b'x'; shift];
        bytes.extend(ZIP64_END);
        bytes.extend([0; ZIP64_COUNT_AT - 4]);
        bytes.extend(count.to_le_bytes());
        bytes.extend([0; 16]);
        bytes.extend(LOCATOR);
        bytes.extend([0; 16]);
        bytes.extend(end(u16::MAX, b""));
        bytes
    }

    #[test]
    fn entry_count_is_found_despite_comments_and_leading_data() {
        assert_eq!(most(b""), 0);
        assert_eq!(most(&end(7, b"a comment")), 7);
        assert_eq!(most(&[end(9, b""), end(7, b"PK\x05\x06")].concat()), 9);
        assert_eq!(most(&large(5_000_000, 0)), 5_000_000);
        for shift in [100, PIECE_BYTES - 20, PIECE_BYTES, 3 * PIECE_BYTES + 11] {
            assert_eq!(most(&large(5_000_000, shift)), 5_000_000, "{shift}");
        }
    }

    #[test]
    fn entry_count_of_a_real_zip_is_exact() {
        let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        for name in ["a", "b", "c"] {
            writer.start_file(name, zip::write::SimpleFileOptions::default().large_file(true)).unwrap();
        }
        assert_eq!(most(&writer.finish().unwrap().into_inner()), 3);
    }
}
