//! The agent's root file system: recipes, building, the image store, import and export.
//!
//! An image is a directory with a root file system. Backends find it in the store by name; sandboxes write elsewhere.
//! This crate does not depend on sandboxes or jobs.

mod access;
mod bootstrap;
mod builder;
mod copy;
mod environment;
mod error;
mod export;
mod import;
mod inside;
mod oci;
mod progress;
mod recipe;
mod stage;
mod store;
mod unfinished;
mod unpack;

pub use access::HostAccess;
pub use builder::{BuildOptions, BuildReport, Reuse, build};
pub use error::ImageError;
pub use export::{Form, export};
pub use import::{Existing, ImportOptions, ImportReport, import};
pub use progress::BuildEvent;
pub use recipe::{Recipe, SUITE};
pub use stage::Stage;
pub use store::{ImageName, ImageRecord, ImageStore, StoredImage};
pub use unfinished::Unfinished;
pub use unpack::Unpacked;
