//! Escape attempts from a namespace sandbox of a root server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod escape_suite;
mod namespace_captor;
mod namespace_host;

use escape_suite::escape_suite;
use namespace_host::Host;

escape_suite!(Host::new());
