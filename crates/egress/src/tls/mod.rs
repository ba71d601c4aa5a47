//! TLS: recognizing it in a tunnel, connecting to servers, and terminating it for the hosts of secrets.

mod certificate_refusal;
mod first_bytes;
mod intercept;
mod job_ca;
mod upstream;

pub use intercept::TlsInterception;
pub use job_ca::Authority;
pub use upstream::Upstream;

pub(crate) use first_bytes::{FirstBytes, Kind, UNRECOGNIZED_NAME, check_server_name, read_first_bytes};
pub(crate) use intercept::intercept;
