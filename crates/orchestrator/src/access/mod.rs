//! Who may do what: API keys, the roles they grant, and their limits.
//!
//! A server without keys does not authenticate callers: anyone who can reach it may do everything. Adding the first
//! key changes that. This module knows keys and roles; the server decides which route needs which role.

mod allowance;
mod keys;
mod logins;
mod oidc_users;
mod seal;
mod shares;
mod usage;

pub use keys::StoredKeys;
pub use logins::Session;
pub use usage::{DayUsage, DefaultsView, KeyUsage};
