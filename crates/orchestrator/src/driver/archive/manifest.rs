//! The manifest of a zip, the file `manifest.json` beside it. Bounded, because names come from the sandbox and are
//! kept in memory until the zip is written.

use std::collections::HashSet;
use std::io;

use serde::Serialize;

use crate::egress::Download;

/// What every redacted name contains.
const REDACTED: &str = "********";
/// Maximum number of files with the same name after redaction.
const MAX_SAME_NAME: u32 = 1000;
/// Maximum size of all names and link targets of one archive, which are kept in memory until it is written.
pub(super) const MAX_NAME_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of left-out entries, and maximum length of the name of each.
pub(super) const MAX_LEFT_OUT: usize = 1000;
pub(super) const MAX_LISTED_NAME_BYTES: usize = 300;

#[derive(Serialize)]
pub(super) struct Manifest {
    pub(super) job: String,
    pub(super) files: Vec<ManifestFile>,
    pub(super) links: Vec<ManifestLink>,
    /// What is in the workspace but not in the archive.
    pub(super) left_out: Vec<LeftOut>,
    /// Downloads that the egress proxy could inspect.
    pub(super) provenance: Vec<Download>,
    /// Redacted names that are taken; two different names may become the same.
    #[serde(skip)]
    pub(super) covered: HashSet<String>,
    /// Bytes of names and link targets so far.
    #[serde(skip)]
    pub(super) name_bytes: usize,
}

impl Manifest {
    pub(super) fn new(job: String, provenance: Vec<Download>) -> Self {
        Self {
            job,
            files: Vec::new(),
            links: Vec::new(),
            left_out: Vec::new(),
            provenance,
            covered: HashSet::new(),
            name_bytes: 0,
        }
    }

    /// Notes an entry that is not in the archive; entries beyond the limit are not noted.
    pub(super) fn leave_out(&mut self, mut name: String, reason: &'static str) {
        if self.left_out.len() >= MAX_LEFT_OUT {
            return;
        }
        if name.len() > MAX_LISTED_NAME_BYTES {
            let end = (0..=MAX_LISTED_NAME_BYTES).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
            name.truncate(end);
            name.push_str("...");
            name.shrink_to_fit();
        }
        self.left_out.push(LeftOut { path: name, reason, target: None });
    }

    /// Counts the memory that an entry takes.
    pub(super) fn count_memory(&mut self, bytes: usize) -> io::Result<()> {
        self.name_bytes = self.name_bytes.saturating_add(bytes);
        if self.name_bytes > MAX_NAME_BYTES {
            return Err(io::Error::other(format!(
                "the names of the workspace take more than {} MiB",
                MAX_NAME_BYTES / 1024 / 1024
            )));
        }
        Ok(())
    }

    /// Appends a number to names that become the same through redaction or through replacement of invalid UTF-8;
    /// `None` if there are too many of them.
    pub(super) fn make_unique(&mut self, name: &str) -> Option<String> {
        if !name.contains(REDACTED) && !name.contains(char::REPLACEMENT_CHARACTER) {
            return Some(name.to_owned());
        }
        let numbered = (2..MAX_SAME_NAME).map(|number| format!("{name}-{number}"));
        let free =
            std::iter::once(name.to_owned()).chain(numbered).find(|name| !self.covered.contains(name))?;
        self.covered.insert(free.clone());
        Some(free)
    }
}

#[derive(Serialize)]
pub(super) struct LeftOut {
    pub(super) path: String,
    /// A stable reason code.
    pub(super) reason: &'static str,
    /// The target of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
}

#[derive(Serialize)]
pub(super) struct ManifestFile {
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) mode: String,
    pub(super) sha256: String,
}

#[derive(Serialize)]
pub(super) struct ManifestLink {
    pub(super) path: String,
    pub(super) target: String,
    /// In seconds since 1970.
    #[serde(skip)]
    pub(super) modified: Option<u64>,
}
