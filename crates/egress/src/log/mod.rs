//! Writing the egress log.

mod record;
mod refusal_limiter;

pub(crate) use record::Record;
pub(crate) use refusal_limiter::RefusalLimiter;
