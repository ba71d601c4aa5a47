//! The only way out of a sandbox: policy, proxy, log.
//!
//! Something inside connects to the guest's loopback, the guest passes the raw bytes over the link, and the
//! orchestrator hands them to [`Proxy::serve`]. There the job's [`Policy`] is asked, the name is resolved once, the
//! address that is really used is checked, and every connection is told to the log when it opens and when it closes.
//! A refusal says what was refused, by which rule, and how to allow it.
//!
//! The crate knows nothing of jobs, links or sandboxes.
//!
//! The way of a connection: `proxy` (entrance) -> `gate` (policy, name, address, dial) -> `connect` or `forward`
//! (bytes), with `event` as the log. Another entrance needs a parser and the same gate.

mod address;
mod connect;
mod environment;
mod error;
mod event;
mod forward;
mod gate;
mod meter;
mod packages;
mod policy;
mod proxy;
mod refusal;
mod resolve;
mod rule;
mod target;

pub use address::{Cidr, Ranges};
pub use environment::environment;
pub use error::EgressError;
pub use event::{Connection, EgressEvent, Verdict};
pub use packages::{PackageGroup, package_groups};
pub use policy::{Grant, Mode, Policy};
pub use proxy::{Proxy, ProxySettings};
pub use refusal::{ReasonCode, Refusal};
pub use rule::Rule;
pub use target::{Host, Target};
