//! What the log says about notebook kernels: the cells that each has run, and the variables that are lost with it.

mod history;
mod names;

pub use self::history::{KERNEL_EVENTS, KERNEL_LOST, KernelHistory, KernelSelector, LoggedCell, Replay};
pub use self::names::Names;
