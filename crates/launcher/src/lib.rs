//! The small program that enters namespaces and owns one sandbox, and the types by which it is told what to do.
//!
//! One process, one thread. [`run`] reads a [`LaunchSpec`], makes the namespaces, becomes the parent of the guest and
//! stays until the guest is gone. Who starts it needs only [`spec`] and [`cgroup`].

pub mod cgroup;
mod channel;
mod child;
mod device;
mod disk;
mod error;
mod mounts;
mod owner;
mod privileges;
mod slot;
pub mod spec;
mod sys;
mod trace;

pub use error::LaunchError;
pub use owner::{fail, run};
pub use privileges::landlock_version;
pub use spec::LaunchSpec;
