//! The headers of a tar archive that extend the entry after them: GNU long names and PAX. Code that reads an
//! untrusted archive iterates over raw entries and parses these headers here, so that a long one is never read into
//! memory.

use std::io::{self, Read};

use tar::{Entry, EntryType, PaxExtensions};

/// Maximum size of such a header.
const MAX_EXTENSION_BYTES: u64 = 64 * 1024;

#[derive(Debug)]
pub(crate) enum ExtensionError {
    /// The header claims a size above the maximum.
    TooLong(String),
    /// The header cannot be parsed.
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

/// What the extension headers say about the next entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PaxHeader {
    pub(crate) name: Option<Vec<u8>>,
    /// Target of a link.
    pub(crate) target: Option<Vec<u8>>,
    /// Size in bytes; `u64::MAX` if the header's value is not a number.
    pub(crate) size: Option<u64>,
}

impl PaxHeader {
    /// Parses an extension header. Returns `false` if the entry is not one.
    pub(crate) fn hear(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<bool, ExtensionError> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.name = Some(text(read(entry)?)),
            EntryType::GNULongLink => self.target = Some(text(read(entry)?)),
            EntryType::XHeader => self.read_pax_records(&read(entry)?)?,
            // A global header applies to the whole archive and contains nothing that is needed.
            EntryType::XGlobalHeader => drop(read(entry)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn read_pax_records(&mut self, header: &[u8]) -> Result<(), ExtensionError> {
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

/// The bytes up to the terminating NUL.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}
