//! The network egress of a sandbox: policy, proxy and log.
//!
//! A process in the sandbox connects to the guest's loopback, the guest sends the raw bytes over the link, and the
//! orchestrator passes them to [`Proxy::serve`]. The proxy checks the job's [`Policy`], resolves the name once,
//! checks the address that is actually used, and logs the opening and closing of every connection. A refusal states
//! what was refused, by which rule, and how to allow it.
//!
//! The crate knows nothing about jobs, links or sandboxes.
//!
//! The path of a connection: `proxy` (entry point; HTTP or SOCKS5) -> `gate` (policy, a person's approval, name,
//! address, dial) -> `proxy::tunnel`, `http::forward` or `tls::intercept` (bytes), with `log` for its events. A new
//! entry point needs only a parser and uses the same gate.

mod error;
mod event;
mod gate;
mod http;
mod log;
mod policy;
mod prefixed;
mod proxy;
mod refusal;
mod secrets;
mod settings;
mod target;
mod tls;
mod usage;

pub use error::EgressError;
pub use event::{Connection, EgressEvent, Fetch, Verdict};
pub use gate::{Answer, Approver, Question};
pub use policy::{
    Cidr, Grant, LearnedPolicy, Mode, PackageGroup, Policy, Ranges, Rule, Visibility, package_groups,
};
pub use proxy::{Proxy, ServerResponseBody, TrustStores, environment};
pub use refusal::{ReasonCode, Refusal};
pub use secrets::{MAX_SECRET_HOSTS, RedactedStream, Redactor, Secret, SecretGrant, SecretString, Secrets};
pub use settings::ProxySettings;
pub use target::{Host, Target};
pub use tls::{Authority, TlsInterception, Upstream};
pub use usage::{Allowance, Used};
