//! The host's side of the file requests.

use bytes::Bytes;

use crate::client::{GuestClient, refuse, unexpected};
use crate::error::ProtocolError;
use crate::exec::CallKey;
use crate::file::{FileOperation, FileReply, FileResult, FileStat, WatchChange};
use crate::message::{Reply, Request};
use crate::stream::{Incoming, MessageStream};

impl GuestClient {
    /// Does a file operation; with a key the guest does it once.
    ///
    /// # Errors
    /// The operation was refused, or the link is broken.
    pub async fn file(
        &self,
        key: Option<CallKey>,
        operation: FileOperation,
    ) -> Result<FileReply, ProtocolError> {
        file_reply(self.ask(&Request::File { key, operation }).await?)
    }

    /// Streams a file out of the sandbox.
    ///
    /// # Errors
    /// There is no such file, or the link is broken.
    pub async fn download(
        &self,
        path: String,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(FileStat, FileDownload), ProtocolError> {
        let mut stream = self.begin(&Request::Download { path, offset, length }).await?;
        match file_reply(refuse(stream.receive_message::<Reply>().await?)?)? {
            FileReply::Stat(stat) => {
                Ok((stat, FileDownload { stream, confirmed: Confirmation::None, left_out: Vec::new() }))
            }
            _ => Err(ProtocolError::Unexpected("an answer that is no stat".into())),
        }
    }

    /// Streams a file into the sandbox.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn upload(&self, path: String, mode: Option<u32>) -> Result<FileUpload, ProtocolError> {
        Ok(FileUpload { stream: self.begin(&Request::Upload { path, mode }).await? })
    }

    /// Streams a directory of the workspace out as tar.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn pack(
        &self,
        path: String,
        exclude: Vec<String>,
        max_file_bytes: Option<u64>,
    ) -> Result<FileDownload, ProtocolError> {
        let stream = self.begin(&Request::Pack { path, exclude, max_file_bytes }).await?;
        Ok(FileDownload { stream, confirmed: Confirmation::Awaited, left_out: Vec::new() })
    }

    /// Streams a tar into a directory of the workspace.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn unpack(&self, path: String) -> Result<FileUpload, ProtocolError> {
        Ok(FileUpload { stream: self.begin(&Request::Unpack { path }).await? })
    }

    /// Watches a directory of the workspace.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn watch(&self, path: String) -> Result<WatchFollower, ProtocolError> {
        Ok(WatchFollower { stream: self.begin(&Request::Watch { path }).await? })
    }
}

fn file_reply(reply: Reply) -> Result<FileReply, ProtocolError> {
    match reply {
        Reply::File(FileResult::Ok(reply)) => Ok(reply),
        Reply::File(FileResult::Error(error)) => Err(error.into()),
        other => Err(unexpected(&other)),
    }
}

/// Whether the other side says at the end that all went well.
#[derive(PartialEq, Eq)]
enum Confirmation {
    None,
    Awaited,
}

/// Bytes that come out of a sandbox.
pub struct FileDownload {
    stream: MessageStream,
    confirmed: Confirmation,
    left_out: Vec<String>,
}

impl FileDownload {
    /// What a pack has left out; known after its end.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The next bytes, or `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// The link is broken, or reading failed inside.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ProtocolError> {
        match self.stream.receive().await? {
            Incoming::Data(bytes) => Ok(Some(bytes)),
            Incoming::DataEnd if self.confirmed == Confirmation::None => Ok(None),
            Incoming::DataEnd => {
                let reply = file_reply(refuse(self.stream.receive_message::<Reply>().await?)?)?;
                if let FileReply::Packed { left_out } = reply {
                    self.left_out = left_out;
                }
                Ok(None)
            }
            message @ Incoming::Message(_) => {
                file_reply(refuse(message.into_message::<Reply>()?)?)?;
                Err(ProtocolError::Unexpected("a message where data was expected".into()))
            }
            Incoming::Closed => Err(ProtocolError::Closed),
            Incoming::Output(_) => Err(ProtocolError::Unexpected("output where data was expected".into())),
        }
    }
}

/// Bytes that go into a sandbox.
pub struct FileUpload {
    stream: MessageStream,
}

impl FileUpload {
    /// Sends more bytes.
    ///
    /// # Errors
    /// The link is broken.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        self.stream.send_data(data).await
    }

    /// Ends the upload; the file is there when this returns.
    ///
    /// # Errors
    /// The upload was refused, or the link is broken.
    pub async fn finish(mut self) -> Result<FileReply, ProtocolError> {
        self.stream.send_data_end().await?;
        file_reply(refuse(self.stream.receive_message::<Reply>().await?)?)
    }
}

/// Changes below a watched directory; dropping it ends the watch.
pub struct WatchFollower {
    stream: MessageStream,
}

impl WatchFollower {
    /// The next change. Cancel safe.
    ///
    /// # Errors
    /// The link is broken, or there is no such directory.
    pub async fn next(&mut self) -> Result<WatchChange, ProtocolError> {
        match self.stream.receive().await? {
            Incoming::Message(bytes) => match serde_json::from_slice::<WatchChange>(&bytes) {
                Ok(change) => Ok(change),
                Err(error) => match serde_json::from_slice::<Reply>(&bytes) {
                    Ok(reply) => file_reply(refuse(reply)?).and_then(|_| {
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
