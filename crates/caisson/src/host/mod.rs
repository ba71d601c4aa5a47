//! What runs sandboxes on this host: the backend with its programs, the images; and what the host supports.

pub(crate) mod backend;
mod folders;
pub(crate) mod images;
pub(crate) mod inspection;
pub(crate) mod programs;
