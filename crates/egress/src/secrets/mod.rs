//! Secrets: replacing placeholders by values, keeping placeholders from leaking, and masking values in output.

mod escapes;
mod leak_scanner;
mod redact;
mod secret;

pub use redact::{RedactedStream, Redactor};
pub use secret::{MAX_SECRET_HOSTS, Secret, SecretGrant, SecretString, Secrets};

pub(crate) use leak_scanner::{Found, LeakScanBody, LeakScanStream, Transport};
