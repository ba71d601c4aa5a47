//! The network egress of a sandbox: policy, proxy and log.
//!
//! A process in the sandbox connects to the guest's loopback, the guest sends the raw bytes over the link, and the
//! orchestrator passes them to [`Proxy::serve`]. The proxy checks the job's [`Policy`], resolves the name once,
//! checks the address that is actually used, and logs the opening and closing of every connection. A refusal states
//! what was refused, by which rule, and how to allow it.
//!
//! The crate knows nothing about jobs, links or sandboxes.
//!
//! The path of a connection: `proxy` (entry point; HTTP or `socks`) -> `gate` (policy, a person's `approval`, name,
//! address, dial) -> `connect`, `forward` or `intercept` (bytes), with `event` as the log. A new entry point needs
//! only a parser and uses the same gate.

mod address;
mod answer_body;
mod answer_head;
mod approval;
mod authority;
mod certificate;
mod connect;
mod environment;
mod errand;
mod error;
mod escapes;
mod event;
mod forward;
mod gate;
mod headers;
mod intercept;
mod learn;
mod ledger;
mod meter;
mod narrow;
mod opening;
mod packages;
mod policy;
mod prefixed;
mod proxy;
mod redact;
mod refusal;
mod refusals;
mod resolve;
mod rule;
mod secret;
mod socks;
mod stray;
mod target;
mod upgrade;

pub use address::{Cidr, Ranges};
pub use approval::{Answer, Approver, Question};
pub use authority::Authority;
pub use environment::{TrustStores, environment};
pub use errand::ErrandBody;
pub use error::EgressError;
pub use event::{Connection, EgressEvent, Fetch, Verdict};
pub use intercept::{Interception, Upstream};
pub use learn::Lesson;
pub use ledger::{Allowance, Used};
pub use packages::{PackageGroup, package_groups};
pub use policy::{Grant, Mode, Policy, Sight};
pub use proxy::{Proxy, ProxySettings};
pub use redact::{RedactedStream, Redactor};
pub use refusal::{ReasonCode, Refusal};
pub use rule::Rule;
pub use secret::{Hidden, Secret, SecretGrant, Secrets};
pub use target::{Host, Target};
