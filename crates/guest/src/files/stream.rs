//! File and tree transfers as streams. Each step runs on the thread for long work. Between steps, the stream waits
//! for the link without blocking that thread.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{FileError, FileReply, FileResult, Incoming, MessageStream, ProtocolError, Reply};

use crate::files::Files;
use crate::files::errors::failed;
use crate::files::operations::{describe, open_file, read_at_most};
use crate::files::pack::{PackRequest, Packer};
use crate::files::resolve::{RelativePath, Root};
use crate::files::unpack::Unpacker;
use crate::files::unpack_entry::Target;
use crate::files::write::Replacement;
use crate::reply::send_reply;

/// Bytes per step.
const STEP_BYTES: u64 = 256 * 1024;

fn reply(result: Result<FileReply, FileError>) -> Reply {
    Reply::File(FileResult::from(result))
}

/// Streams a file out of the sandbox.
pub(crate) async fn download(
    files: &Files,
    mut stream: MessageStream,
    path: String,
    offset: u64,
    length: Option<u64>,
) -> Result<(), ProtocolError> {
    let workspace = Arc::clone(&files.workspace);
    let opened = files.workers.long(move || {
        let path = RelativePath::parse(path, Root::Refused)?;
        open_file(&workspace, &path).map(|(file, stat)| (file, describe(&stat, None), path))
    });
    let (mut file, stat, path) = match opened.await.and_then(|opened| opened) {
        Ok(opened) => opened,
        Err(error) => return send_reply(&mut stream, &reply(Err(error))).await,
    };
    // Bytes appended meanwhile are not sent, so that the stream ends.
    let mut left = stat.size.saturating_sub(offset).min(length.unwrap_or(u64::MAX));
    let mut offset = offset;
    stream.send(&reply(Ok(FileReply::Stat(stat)))).await?;
    while left > 0 {
        let wanted = usize::try_from(left.min(STEP_BYTES)).unwrap_or(0);
        let step = files.workers.long(move || {
            let mut buffer = vec![0; wanted];
            let count = read_at_most(&file, &mut buffer, offset);
            (
                file,
                count.map(|count| {
                    buffer.truncate(count);
                    buffer
                }),
            )
        });
        let read = step.await.and_then(|(back, read)| Ok((back, read.map_err(failed("reading", &path))?)));
        let bytes = match read {
            Ok((back, bytes)) => {
                file = back;
                bytes
            }
            Err(error) => return send_reply(&mut stream, &reply(Err(error))).await,
        };
        if bytes.is_empty() {
            break;
        }
        stream.send_data(&bytes).await?;
        offset += bytes.len() as u64;
        left = left.saturating_sub(bytes.len() as u64);
    }
    stream.send_data_end().await?;
    stream.close().await
}

/// Streams a directory out of the sandbox as a tar archive.
pub(crate) async fn pack(
    files: &Files,
    mut stream: MessageStream,
    order: PackRequest,
) -> Result<(), ProtocolError> {
    let workspace = Arc::clone(&files.workspace);
    let begun = files.workers.long(move || Packer::begin(&workspace, order)).await;
    let mut packer = match begun.and_then(|begun| begun) {
        Ok(packer) => packer,
        Err(error) => return send_reply(&mut stream, &reply(Err(error))).await,
    };
    let left_out = loop {
        let step = files.workers.long(move || {
            let made = packer.step();
            (packer, made)
        });
        match step.await {
            Ok((back, Some(bytes))) => {
                packer = back;
                stream.send_data(&bytes).await?;
            }
            Ok((packer, None)) => break packer.left_out(),
            Err(error) => return send_reply(&mut stream, &reply(Err(error))).await,
        }
    };
    stream.send_data_end().await?;
    send_reply(&mut stream, &reply(Ok(FileReply::Packed { left_out }))).await
}

/// A consumer that turns a stream of bytes into files.
trait Sink: Send + Sized + 'static {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), FileError>;
    fn finish(self) -> Result<FileReply, FileError>;
}

impl Sink for Replacement {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.write(bytes)
    }

    fn finish(self) -> Result<FileReply, FileError> {
        self.commit().map(|size| FileReply::Written { size })
    }
}

impl Sink for Unpacker {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        Unpacker::feed(self, bytes)
    }

    fn finish(self) -> Result<FileReply, FileError> {
        Unpacker::finish(self).map(|()| FileReply::Done)
    }
}

/// Streams a file into the sandbox. The file appears complete or not at all.
pub(crate) async fn upload(
    files: &Files,
    stream: MessageStream,
    path: String,
    mode: Option<u32>,
) -> Result<(), ProtocolError> {
    let workspace = Arc::clone(&files.workspace);
    let begun = files.workers.long(move || Replacement::begin(&workspace, &path, mode)).await;
    receive(files, stream, begun.and_then(|begun| begun)).await
}

/// Streams a tar archive into a directory.
pub(crate) async fn unpack(files: &Files, stream: MessageStream, path: String) -> Result<(), ProtocolError> {
    let workspace = Arc::clone(&files.workspace);
    let begun = files.workers.long(move || Target::open(workspace, &path).map(Unpacker::begin)).await;
    receive(files, stream, begun.and_then(|begun| begun)).await
}

/// Feeds a sink from the stream. After a failure, reads and discards the rest, so that the host can finish sending
/// and then read the error.
async fn receive<S: Sink>(
    files: &Files,
    mut stream: MessageStream,
    begun: Result<S, FileError>,
) -> Result<(), ProtocolError> {
    let mut state = begun;
    let received = loop {
        match stream.receive().await {
            Ok(Incoming::Data(bytes)) => {
                state = match state {
                    Ok(sink) => feed(files, sink, bytes).await,
                    Err(error) => Err(error),
                };
            }
            Ok(Incoming::DataEnd) => break Ok(()),
            Ok(Incoming::Closed) => break Err(ProtocolError::Closed),
            Ok(_) => break Err(ProtocolError::Unexpected("something else where data was expected".into())),
            Err(error) => break Err(error),
        }
    };
    let finished = match (state, received) {
        (Ok(sink), Ok(())) => files.workers.long(move || sink.finish()).await.and_then(|finished| finished),
        (Ok(sink), Err(error)) => {
            // Drop it on the thread that has permission to remove the unfinished file.
            let _ = files.workers.long(move || drop(sink)).await;
            return Err(error);
        }
        (Err(_), Err(error)) => return Err(error),
        (Err(error), Ok(())) => Err(error),
    };
    send_reply(&mut stream, &reply(finished)).await
}

async fn feed<S: Sink>(files: &Files, mut sink: S, bytes: Bytes) -> Result<S, FileError> {
    let fed = files.workers.long(move || sink.feed(&bytes).map(|()| sink));
    fed.await.and_then(|fed| fed)
}
