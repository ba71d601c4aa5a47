//! The person who has taken over a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::Sequence;

/// Who holds the sandbox of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Holder {
    /// A name for others to see.
    pub by: String,
    /// Digest of the token that the holder's clients show.
    pub lock: String,
    /// The event that says so: what comes after it is the holder's doing.
    #[schema(value_type = u64)]
    pub since: Sequence,
}
