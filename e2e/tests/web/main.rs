//! The web page in a real browser, against the real server with real sandboxes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod accessibility;
mod actions;
mod agents;
mod drag_and_drop;
mod files;
mod follow;
mod input_requests;
mod job_origins;
mod jobs;
mod keyboard;
mod large_lists;
mod live;
mod login;
mod notebook;
mod oidc_login;
mod overlay_accessibility;
mod page_helpers;
mod pane_layout;
mod panes;
mod read_only;
mod results;
mod rich_output;
mod server_endpoints;
mod server_failures;
mod start;
mod unsaved;
