//! Jobs on a server whose sandboxes are containers: the same guarantees as with namespaces, and the errors when the
//! engine or an image is missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod crash;
mod default_image;
mod default_image_import;
mod egress;
mod errors;
mod in_container;
mod jobs;
mod outage;
