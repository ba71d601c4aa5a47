//! Sources of a workspace's tar stream: a task that sends it, or a saved file.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use super::{removed_on_failure, sync_folder};

/// What an async task sends to the thread that writes the archive.
pub(crate) enum Piece {
    /// Part of the archive.
    Bytes(Bytes),
    /// The stream is complete.
    End {
        /// Paths in the workspace that are not in the archive.
        left_out: Vec<String>,
    },
}

/// Reads the pieces that an async task sends. Without [`Piece::End`], the stream was truncated.
pub(crate) struct ChannelReader {
    receiver: mpsc::Receiver<Piece>,
    current: Bytes,
    left_out: Option<Vec<String>>,
}

impl ChannelReader {
    pub(crate) fn new(receiver: mpsc::Receiver<Piece>) -> Self {
        Self { receiver, current: Bytes::new(), left_out: None }
    }
}

/// A tar stream that knows at its end what was left out.
pub(crate) trait TarSource: Read {
    /// Reads to the end. Returns what is not in the archive, or an error if the stream was truncated.
    fn finish(self) -> io::Result<Vec<String>>;
}

impl TarSource for ChannelReader {
    fn finish(mut self) -> io::Result<Vec<String>> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.left_out.unwrap_or_default())
    }
}

impl Read for ChannelReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.receiver.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.current = bytes,
                Some(Piece::End { left_out }) => self.left_out = Some(left_out),
                None if self.left_out.is_some() => return Ok(0),
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream broke off")),
            }
        }
        let count = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

/// Saves a tar stream compressed, completely or not at all; returns the file size.
pub(crate) fn save_tar(mut tar: impl TarSource, target: &Path) -> io::Result<u64> {
    let partial = target.with_extension("partial");
    removed_on_failure(&partial, || {
        let file = File::create(&partial)?;
        let mut out = BufWriter::new(&file);
        zstd::stream::copy_encode(&mut tar, &mut out, 1)?;
        // Dropping the writer would ignore the error of a full disk.
        out.flush()?;
        file.sync_all()?;
        let bytes = file.metadata()?.len();
        std::fs::rename(&partial, target)?;
        sync_folder(target)?;
        Ok(bytes)
    })
}

/// Opens a saved tar stream.
pub(crate) fn open_tar(path: &Path) -> io::Result<SavedTar> {
    Ok(SavedTar(zstd::stream::read::Decoder::new(File::open(path)?)?))
}

/// A tar stream from a file that we saved.
pub(crate) struct SavedTar(zstd::stream::read::Decoder<'static, BufReader<File>>);

impl Read for SavedTar {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl TarSource for SavedTar {
    fn finish(self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}
