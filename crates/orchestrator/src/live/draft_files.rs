//! Reads the files of a draft from its upload folder. Only the upload code writes there, and it never creates
//! symbolic links.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use bytes::Bytes;
use protocol::{FileErrorCode, FileKind};
use tokio::io::AsyncReadExt;

use crate::error::OrchestratorError;
use crate::live::files::{FileContent, FileItem, FileListing, file_error};

const CHUNK_BYTES: usize = 64 * 1024;

/// Lists the uploads below `path`, at most `depth` levels deep and `most` entries.
pub(crate) fn list(
    uploads: &Path,
    path: String,
    depth: u32,
    most: usize,
) -> Result<FileListing, OrchestratorError> {
    let start = uploads.join(&path);
    if !path.is_empty() && !start.is_dir() {
        return Err(file_error(FileErrorCode::NotFound, format!("there is no directory `{path}`")));
    }
    let mut entries = Vec::new();
    walk(&start, &path, depth, &mut entries).map_err(OrchestratorError::io("listing the uploaded files"))?;
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let truncated = entries.len() > most;
    entries.truncate(most);
    Ok(FileListing { path, entries, truncated })
}

fn walk(folder: &Path, prefix: &str, depth: u32, entries: &mut Vec<FileItem>) -> std::io::Result<()> {
    // The folder does not exist until the first upload.
    let Ok(found) = fs::read_dir(folder) else { return Ok(()) };
    for entry in found {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        let metadata = entry.metadata()?;
        let kind = if metadata.is_dir() { FileKind::Directory } else { FileKind::File };
        if metadata.is_dir() && depth > 1 {
            walk(&entry.path(), &path, depth - 1, entries)?;
        }
        entries.push(FileItem {
            path,
            kind,
            size: if metadata.is_dir() { 0 } else { metadata.len() },
            mode: metadata.permissions().mode() & 0o777,
            modified_ms: modified_ms(&metadata),
            link_target: None,
        });
    }
    Ok(())
}

fn modified_ms(metadata: &fs::Metadata) -> i64 {
    metadata.mtime().saturating_mul(1000).saturating_add(metadata.mtime_nsec() / 1_000_000)
}

pub(crate) async fn read(uploads: &Path, path: &str) -> Result<FileContent, OrchestratorError> {
    let opened = tokio::fs::File::open(uploads.join(path)).await;
    let file =
        opened.map_err(|_| file_error(FileErrorCode::NotFound, format!("there is no file `{path}`")))?;
    let metadata = file.metadata().await.map_err(OrchestratorError::io("reading an uploaded file"))?;
    if metadata.is_dir() {
        return Err(file_error(FileErrorCode::IsDirectory, format!("`{path}` is a directory")));
    }
    let chunks = futures::stream::unfold(Some(file), |file| async move {
        let mut file = file?;
        let mut buffer = vec![0; CHUNK_BYTES];
        match file.read(&mut buffer).await {
            Ok(0) => None,
            Ok(count) => {
                buffer.truncate(count);
                Some((Ok(Bytes::from(buffer)), Some(file)))
            }
            Err(error) => Some((Err(OrchestratorError::io("reading an uploaded file")(error)), None)),
        }
    });
    Ok(FileContent { size: metadata.len(), modified_ms: modified_ms(&metadata), chunks: Box::pin(chunks) })
}
