//! What the backends that use this Linux host share: disks, loop devices, system call rules, certificates, checks.
//!
//! Backends import from here, never from each other.

pub(crate) mod background;
pub(crate) mod certificates;
pub(crate) mod checks;
pub(crate) mod directories;
pub(crate) mod disk;
pub(crate) mod java_store;
pub(crate) mod limits;
pub(crate) mod loop_device;
pub(crate) mod packages;
pub(crate) mod seccomp;
mod usage;
