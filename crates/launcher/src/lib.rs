//! The small program that enters namespaces and owns one sandbox, and the types by which it is told what to do.
//!
//! Processes of one thread, but for one that syncs a disk. [`stand_by`] takes orders; for each it forks a process that reads a [`LaunchSpec`], makes the
//! namespaces, becomes the parent of the guest and stays until the guest is gone. [`remove`] deletes what a sandbox has
//! left, [`probe`] tries what a sandbox needs. Who starts it needs only [`spec`], [`standby`], [`launch_file`],
//! [`cgroup`], [`delegation`] and [`mark`]; who mounts a disk itself, [`disk`] and [`disk_sync`]; who
//! lends networks, [`network`]; who seals a `/proc` itself, [`hidden`].

pub mod cgroup;
mod channel;
mod child;
pub mod delegation;
mod device;
pub mod disk;
pub mod disk_sync;
mod error;
mod files;
pub mod hidden;
pub mod launch_file;
mod layers;
mod log;
pub mod mark;
mod mounts;
pub mod network;
mod owner;
mod privileges;
mod probe;
pub mod process;
mod removal;
mod shelter;
mod slot;
pub mod spec;
pub mod standby;
mod sys;
mod trace;
mod users;

pub use error::LaunchError;
pub use owner::fail;
pub use privileges::landlock_version;
pub use probe::{has_file_system, probe};
pub use removal::remove;
pub use shelter::LEAST_LANDLOCK;
pub use spec::LaunchSpec;
pub use standby::stand_by;
