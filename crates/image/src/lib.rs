//! The agent's root file system: recipes, building, the image store, import and export.
//!
//! An image is a directory with a root file system. Backends find it in the store by name; sandboxes write elsewhere.
//! This crate does not depend on sandboxes or jobs.

mod bootstrap;
mod build_root;
mod builder;
mod copy;
mod environment;
mod error;
mod export;
mod import;
mod oci;
mod progress;
mod recipe;
mod registry_access;
mod stage;
mod store;
mod unpack;
mod work_folders;

pub use builder::{BuildOptions, BuildReport, Reuse, build};
pub use error::ImageError;
pub use export::{ExportFormat, export};
pub use import::{IfExists, ImportOptions, ImportReport, import};
pub use progress::BuildEvent;
pub use recipe::{Recipe, SUITE};
pub use registry_access::RegistryAccess;
pub use stage::Stage;
pub use store::{ImageName, ImageRecord, ImageStore, StoredImage};
pub use unpack::Unpacked;
pub use work_folders::Unfinished;
