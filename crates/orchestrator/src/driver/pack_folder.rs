//! Packs a folder of the server as a tar archive.

use std::io::{self, Write};
use std::path::Path;

/// Writes the files of an upload as a tar.
pub(crate) fn pack(folder: &Path, out: impl Write) -> io::Result<()> {
    let mut builder = tar::Builder::new(out);
    builder.follow_symlinks(false);
    builder.append_dir_all("", folder)?;
    builder.into_inner()?.flush()
}
