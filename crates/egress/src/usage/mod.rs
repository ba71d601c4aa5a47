//! A job's network usage: counting it, and enforcing the job's limits.

mod ledger;
mod meter;

pub use ledger::{Allowance, Used};

pub(crate) use ledger::Ledger;
pub(crate) use meter::{Meter, Metered};
