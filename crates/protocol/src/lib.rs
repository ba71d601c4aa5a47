//! The link between the orchestrator and the guest inside a sandbox.
//!
//! One byte stream carries many streams ([`Link`]). Each stream carries one request and its reply as frames
//! ([`frame`]). Messages are JSON, so that an older guest and a newer host understand each other. Bulk data is raw.
//! [`GuestClient`] implements the host's side of every request; the crate `guest` implements the guest's side.
//!
//! A stream that the host opens starts with a [`Request`]. A stream that the guest opens starts with a
//! [`GuestRequest`]. Its only kind is an outgoing connection of a process in the sandbox.

mod client;
mod client_desktop;
mod client_files;
mod client_services;
mod credentials;
mod deferred_flush;
mod desktop;
mod display;
mod error;
mod exec;
mod file;
pub mod frame;
mod kernel;
mod link;
mod message;
mod service;
mod stream;
mod sys;
mod version;

pub use client::{CallFollower, CallInput, GuestClient};
pub use client_desktop::MAX_IMAGE_BYTES;
pub use client_files::{FileDownload, FileUpload, WatchFollower};
pub use credentials::{LinkCredentials, LinkOwner, LinkRefusal, LinkSecret};
pub use desktop::{
    DISPLAY, DesktopRequest, DesktopSpec, GuiAction, GuiError, GuiErrorCode, GuiReply, GuiResult, ImageInfo,
    MAX_TYPED_CHARS, MAX_WAIT_S, Modifier, MouseButton, Recording, WindowChoice, WindowInfo,
};
pub use display::{CellError, Display, DisplayKind, DisplayReader, MAX_DISPLAY_BYTES, plain_text};
pub use error::ProtocolError;
pub use exec::{
    CallKey, CallStatus, Exec, ExecEnd, ExecEvent, ExecOutcome, ExecUpdate, Follow, KernelRun, MAX_SIGNAL,
    NotStarted, NotStartedCause, OutputChunk, OutputStream, Program, TerminalSize,
};
pub use file::{
    FileEntry, FileError, FileErrorCode, FileKind, FileOperation, FileReply, FileResult, FileStat,
    WatchChange,
};
pub use kernel::{Cell, KernelAction, KernelChoice, KernelState, KernelStatus};
pub use link::{IncomingStreams, Link, LinkEnd, Side};
pub use message::{GuestRequest, GuestStats, Hello, Reply, Request, Welcome};
pub use service::{
    BadServiceName, Endpoint, Readiness, ServiceName, ServiceRequest, ServiceSpec, ServiceState,
    ServiceStatus,
};
pub use stream::{ByteStream, Incoming, MessageStream, RawStream};
pub use sys::release_program_pages;
pub use version::{OLDEST_VERSION, VERSION, negotiate};
