//! The headers of a tar that only say more of the entry after them: long names, PAX. Whoever reads an archive of somebody else
//! takes its entries raw and lets these be read here: none is taken into memory whatever its length.

use std::io::{self, Read};

use tar::{Entry, EntryType, PaxExtensions};

/// The longest of them.
const MAX_EXTENSION_BYTES: u64 = 64 * 1024;

/// Why one of them is not taken.
#[derive(Debug)]
pub(crate) enum ExtensionError {
    /// It claims more than may be.
    TooLong(String),
    /// It cannot be read.
    Unreadable(io::Error),
}

impl From<ExtensionError> for io::Error {
    fn from(error: ExtensionError) -> Self {
        match error {
            ExtensionError::TooLong(problem) => Self::other(problem),
            ExtensionError::Unreadable(error) => error,
        }
    }
}

/// What was said of the entry that follows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Its name.
    pub(crate) name: Option<Vec<u8>>,
    /// Where it points.
    pub(crate) target: Option<Vec<u8>>,
    /// Its size; one that is no number is larger than any.
    pub(crate) size: Option<u64>,
}

impl Told {
    /// Takes what an entry says of the next one; whether it was such an entry.
    pub(crate) fn hear(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<bool, ExtensionError> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.name = Some(text(read(entry)?)),
            EntryType::GNULongLink => self.target = Some(text(read(entry)?)),
            EntryType::XHeader => self.hear_records(&read(entry)?)?,
            // It speaks of the whole archive, and says nothing that is wanted.
            EntryType::XGlobalHeader => drop(read(entry)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn hear_records(&mut self, header: &[u8]) -> Result<(), ExtensionError> {
        for record in PaxExtensions::new(header) {
            let record = record.map_err(ExtensionError::Unreadable)?;
            match record.key_bytes() {
                b"path" => self.name = Some(record.value_bytes().to_vec()),
                b"linkpath" => self.target = Some(record.value_bytes().to_vec()),
                b"size" => {
                    self.size =
                        Some(record.value().ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX))
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn read(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, ExtensionError> {
    let size = entry.size();
    if size > MAX_EXTENSION_BYTES {
        return Err(ExtensionError::TooLong(format!(
            "the archive has a header of {size} bytes for names and times; the longest is {MAX_EXTENSION_BYTES}"
        )));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(ExtensionError::Unreadable)?;
    Ok(bytes)
}

/// Up to the end that it has in the archive.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}
