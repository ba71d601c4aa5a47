//! Where the tar stream of a workspace comes from: a task that sends it, or a file of ours.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use super::{removed_on_failure, sync_folder};

/// What an asynchronous task sends to the thread that writes.
pub(crate) enum Piece {
    /// Part of the archive.
    Bytes(Bytes),
    /// All has come; these paths are not in it.
    End {
        /// Paths in the workspace.
        left_out: Vec<String>,
    },
}

/// Pieces that an asynchronous task sends, read by a thread. Without [`Piece::End`] the stream has broken off.
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

/// A tar stream that knows at its end what it does not hold.
pub(crate) trait TarSource: Read {
    /// Reads to the end; what is not in the archive, or an error where it broke off.
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

/// Saves a tar stream compressed, complete or not at all; returns the size of the file.
pub(crate) fn save_tar(mut tar: impl TarSource, target: &Path) -> io::Result<u64> {
    let partial = target.with_extension("partial");
    removed_on_failure(&partial, || {
        let file = File::create(&partial)?;
        let mut out = BufWriter::new(&file);
        zstd::stream::copy_encode(&mut tar, &mut out, 1)?;
        // Left to its end it would keep to itself that the disk is full.
        out.flush()?;
        file.sync_all()?;
        let bytes = file.metadata()?.len();
        std::fs::rename(&partial, target)?;
        sync_folder(target)?;
        Ok(bytes)
    })
}

/// Reads a saved tar stream.
pub(crate) fn open_tar(path: &Path) -> io::Result<SavedTar> {
    Ok(SavedTar(zstd::stream::read::Decoder::new(File::open(path)?)?))
}

/// A tar stream from a file of ours.
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
