//! Access to the sandbox of a running job for people and programs: commands, files, terminals, notebooks, desktop,
//! ports, resource usage, and the takeover lock.

pub(crate) mod calls;
pub(crate) mod cells;
pub(crate) mod context_view;
pub(crate) mod control;
pub(crate) mod desktop;
pub(crate) mod draft_files;
pub(crate) mod exec_request;
pub(crate) mod files;
pub(crate) mod handback_summary;
pub(crate) mod model_output;
pub(crate) mod notebook;
pub(crate) mod stats;
pub(crate) mod streams;
pub(crate) mod takeover_lock;
pub(crate) mod terminals;
pub(crate) mod time_limit;
pub(crate) mod zip_listing;
