//! The launcher: a small program that enters namespaces and owns one sandbox, and the types that tell it what to do.
//!
//! Its processes are single-threaded, except while one syncs a disk. [`stand_by`] accepts requests. For each it forks
//! a process that reads a [`LaunchSpec`], creates the namespaces, becomes the parent of the guest and stays until the
//! guest is gone. [`remove`] deletes what a sandbox has left behind; [`probe`] tries what a sandbox needs.
//!
//! Public modules by use:
//!
//! - starting a launcher: [`spec`], [`standby`], [`launch_file`], [`cgroup`], [`delegation`] and [`mark`]
//! - mounting a disk directly: [`disk`] and [`disk_sync`]
//! - creating networks ahead of time: [`network`]
//! - hiding parts of `/proc` directly: [`hidden`]
//! - removing the files of unused user ids: [`slot`]

pub mod cgroup;
mod channel;
mod child;
pub mod delegation;
mod detached_mount;
mod device;
pub mod disk;
pub mod disk_sync;
mod error;
mod file_audit;
pub mod hidden;
mod landlock_only;
pub mod launch_file;
mod layers;
mod limits;
mod log;
mod mounts;
pub mod network;
mod owner;
mod privileges;
mod probe;
pub mod process;
pub mod process_mark;
mod removal;
pub mod slot;
pub mod spec;
pub mod standby;
mod sys;
mod trace;
mod users;

pub use error::LaunchError;
pub use landlock_only::MIN_LANDLOCK_ABI;
pub use limits::LaunchLimits;
pub use owner::fail;
pub use privileges::landlock_version;
pub use probe::{has_file_system, probe};
pub use removal::remove;
pub use spec::LaunchSpec;
pub use standby::stand_by;
