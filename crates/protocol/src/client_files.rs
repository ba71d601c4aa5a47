//! The host's side of the file requests.

use bytes::Bytes;

use crate::client::{GuestClient, check_refused, unexpected};
use crate::error::ProtocolError;
use crate::exec::CallKey;
use crate::file::{FileOperation, FileReply, FileResult, FileStat, WatchChange};
use crate::message::{Reply, Request};
use crate::stream::{Incoming, MessageStream};

impl GuestClient {
    /// Performs a file operation. With a key, the guest performs it only once.
    ///
    /// # Errors
    /// The guest refused the operation, or the link is broken.
    pub async fn file(
        &self,
        key: Option<CallKey>,
        operation: FileOperation,
    ) -> Result<FileReply, ProtocolError> {
        file_reply(self.send_request(&Request::File { key, operation }).await?)
    }

    /// Streams a file out of the sandbox.
    ///
    /// # Errors
    /// The file does not exist, or the link is broken.
    pub async fn download(
        &self,
        path: String,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(FileStat, FileDownload), ProtocolError> {
        let mut stream = self.open_request(&Request::Download { path, offset, length }).await?;
        match file_reply(check_refused(stream.receive_message::<Reply>().await?)?)? {
            FileReply::Stat(stat) => {
                Ok((stat, FileDownload { stream, confirmed: Confirmation::None, left_out: Vec::new() }))
            }
            _ => Err(ProtocolError::Unexpected("an answer that is no stat".into())),
        }
    }

    /// Streams a file into the sandbox.
    pub async fn upload(&self, path: String, mode: Option<u32>) -> Result<FileUpload, ProtocolError> {
        Ok(FileUpload { stream: self.open_request(&Request::Upload { path, mode }).await? })
    }

    /// Streams a directory of the workspace out of the sandbox as a tar archive.
    pub async fn pack(
        &self,
        path: String,
        exclude: Vec<String>,
        max_file_bytes: Option<u64>,
    ) -> Result<FileDownload, ProtocolError> {
        let stream = self.open_request(&Request::Pack { path, exclude, max_file_bytes }).await?;
        Ok(FileDownload { stream, confirmed: Confirmation::Awaited, left_out: Vec::new() })
    }

    /// Streams a tar archive into a directory of the workspace.
    pub async fn unpack(&self, path: String) -> Result<FileUpload, ProtocolError> {
        Ok(FileUpload { stream: self.open_request(&Request::Unpack { path }).await? })
    }

    /// Watches a directory of the workspace.
    pub async fn watch(&self, path: String) -> Result<WatchFollower, ProtocolError> {
        Ok(WatchFollower { stream: self.open_request(&Request::Watch { path }).await? })
    }
}

fn file_reply(reply: Reply) -> Result<FileReply, ProtocolError> {
    match reply {
        Reply::File(FileResult::Ok(reply)) => Ok(reply),
        Reply::File(FileResult::Error(error)) => Err(error.into()),
        other => Err(unexpected(&other)),
    }
}

/// Whether the guest sends a final reply after the data.
#[derive(PartialEq, Eq)]
enum Confirmation {
    None,
    Awaited,
}

/// A stream of bytes out of a sandbox.
pub struct FileDownload {
    stream: MessageStream,
    confirmed: Confirmation,
    left_out: Vec<String>,
}

impl FileDownload {
    /// The paths that a pack left out. Known only after the end of the stream.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Returns the next bytes, or `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// The link is broken, or the guest could not read the file.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ProtocolError> {
        match self.stream.receive().await? {
            Incoming::Data(bytes) => Ok(Some(bytes)),
            Incoming::DataEnd if self.confirmed == Confirmation::None => Ok(None),
            Incoming::DataEnd => {
                let reply = file_reply(check_refused(self.stream.receive_message::<Reply>().await?)?)?;
                if let FileReply::Packed { left_out } = reply {
                    self.left_out = left_out;
                }
                Ok(None)
            }
            message @ Incoming::Message(_) => {
                file_reply(check_refused(message.into_message::<Reply>()?)?)?;
                Err(ProtocolError::Unexpected("a message where data was expected".into()))
            }
            Incoming::Closed => Err(ProtocolError::Closed),
            Incoming::Output(_) => Err(ProtocolError::Unexpected("output where data was expected".into())),
        }
    }
}

/// A stream of bytes into a sandbox.
pub struct FileUpload {
    stream: MessageStream,
}

impl FileUpload {
    pub async fn write(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        self.stream.send_data(data).await
    }

    /// Ends the upload. When this returns, the file is in place.
    ///
    /// # Errors
    /// The guest refused the upload, or the link is broken.
    pub async fn finish(mut self) -> Result<FileReply, ProtocolError> {
        self.stream.send_data_end().await?;
        file_reply(check_refused(self.stream.receive_message::<Reply>().await?)?)
    }
}

/// A stream of changes below a watched directory. Dropping it ends the watch.
pub struct WatchFollower {
    stream: MessageStream,
}

impl WatchFollower {
    /// Waits for the next change. Cancel safe.
    ///
    /// # Errors
    /// The link is broken, or the directory does not exist.
    pub async fn next(&mut self) -> Result<WatchChange, ProtocolError> {
        match self.stream.receive().await? {
            Incoming::Message(bytes) => match serde_json::from_slice::<WatchChange>(&bytes) {
                Ok(change) => Ok(change),
                Err(error) => match serde_json::from_slice::<Reply>(&bytes) {
                    Ok(reply) => file_reply(check_refused(reply)?).and_then(|_| {
                        Err(ProtocolError::Unexpected("an answer where a change was expected".into()))
                    }),
                    Err(_) => Err(ProtocolError::Decode(error)),
                },
            },
            Incoming::Closed => Err(ProtocolError::Closed),
            _ => Err(ProtocolError::Unexpected("data where a change was expected".into())),
        }
    }
}
