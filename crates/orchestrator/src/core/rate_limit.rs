//! Rate limits per key: a token bucket that refills evenly and holds one second's worth of requests.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use job::{Key, KeyId};

/// The token buckets of all keys that have a limit.
#[derive(Debug, Default)]
pub(crate) struct RateLimiter {
    buckets: Mutex<HashMap<KeyId, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    seen: Instant,
}

impl RateLimiter {
    /// Takes one token from the key's bucket. Returns `false` if it is empty.
    pub(crate) fn allows(&self, key: &Key, now: Instant) -> bool {
        let Some(rate) = key.limits.requests_per_second.map(f64::from) else { return true };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(key.id.clone()).or_insert(Bucket { left: rate, seen: now });
        let waited = now.saturating_duration_since(bucket.seen).as_secs_f64();
        bucket.left = (bucket.left + waited * rate).min(rate);
        bucket.seen = now;
        let is_left = bucket.left >= 1.0;
        if is_left {
            bucket.left -= 1.0;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(limits: &serde_json::Value) -> Key {
        serde_json::from_value(serde_json::json!({
            "id": "k", "name": "k", "role": "viewer", "created_ms": 0, "limits": limits
        }))
        .unwrap()
    }

    #[test]
    fn key_is_limited_to_its_requests_per_second() {
        let (rate_limit, start) = (RateLimiter::default(), Instant::now());
        let slow = key(&serde_json::json!({"requests_per_second": 2}));
        let asked = |at: Duration| rate_limit.allows(&slow, start + at);
        assert!(asked(Duration::ZERO) && asked(Duration::ZERO));
        assert!(!asked(Duration::ZERO));
        assert!(asked(Duration::from_millis(500)));
        assert!(!asked(Duration::from_millis(500)));
        assert!(asked(Duration::from_secs(60)) && asked(Duration::from_secs(60)));
        assert!(!asked(Duration::from_secs(60)), "what was not asked for is not saved up");
    }

    #[test]
    fn key_without_limit_is_never_rejected() {
        let (rate_limit, free) = (RateLimiter::default(), key(&serde_json::json!({})));
        assert!((0..1000).all(|_| rate_limit.allows(&free, Instant::now())));
    }
}
