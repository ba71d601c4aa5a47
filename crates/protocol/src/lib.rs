//! The link between the orchestrator and the guest inside a sandbox.
//!
//! One byte stream carries many streams ([`Link`]); each stream carries one request and its answer as frames
//! ([`frame`]). Messages are JSON so that an older guest and a newer host understand each other; bulk data is raw.
//! [`GuestClient`] is the host's side of every request. The guest's side is in the crate `guest`.
//!
//! A stream that the host opens starts with a [`Request`]. A stream that the guest opens starts with a
//! [`GuestRequest`]; the only one is an outgoing connection of something that runs in the sandbox.

mod client;
mod client_files;
mod error;
mod exec;
mod file;
pub mod frame;
mod link;
mod message;
mod stream;
mod version;

pub use client::{CallFollower, CallInput, GuestClient};
pub use client_files::{FileDownload, FileUpload, WatchFollower};
pub use error::ProtocolError;
pub use exec::{
    CallKey, CallStatus, Exec, ExecEnd, ExecEvent, ExecOutcome, ExecUpdate, Follow, OutputChunk,
    OutputStream, Program, TerminalSize,
};
pub use file::{
    FileEntry, FileError, FileErrorCode, FileKind, FileOperation, FileReply, FileResult, FileStat,
    WatchChange,
};
pub use link::{IncomingStreams, Link, Side};
pub use message::{GuestRequest, GuestStats, Hello, Reply, Request, Welcome};
pub use stream::{ByteStream, Incoming, MessageStream, RawStream};
pub use version::{OLDEST_VERSION, VERSION, settle};
