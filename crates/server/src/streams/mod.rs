//! Long responses and connections: files, event streams and WebSockets.

mod download;
mod event_stream;
mod vnc_filter;
mod websocket;

pub(crate) use download::{Description, send_file, set_content_headers};
pub(crate) use event_stream::{DeltaSubscription, EventEncoding, EventFollower, LogState};
pub(crate) use vnc_filter::{InputMode, InvalidViewerMessage, ViewerFilter};
pub(crate) use websocket::{ClientMessage, CloseReason, SocketReader, SocketWriter, Upgrade};
