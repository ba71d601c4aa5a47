//! Decides whether to retry, and with which model. Does no I/O; `chain.rs` does the waiting.

use std::time::Duration;

use crate::error::{ModelError, Retryable};

/// The delay before the first retry; it doubles each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The maximum delay, unless the provider asks for more.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// If a provider asks for a longer delay, the next model is used.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// The maximum number of retries after malformed responses, which rarely get better.
const MAX_MALFORMED: u32 = 2;

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Retry the same model after a delay.
    Retry(Duration),
    /// Use the next model, if there is one.
    NextModel,
    /// Return the error to the caller.
    Fail,
}

/// Decides after `failures` failed attempts (at least one) with the same model. `jitter` is between 0 and 1.
pub(crate) fn decide(error: &ModelError, failures: u32, retries: u32, jitter: f64) -> Decision {
    match error.retryable() {
        Retryable::No => return Decision::Fail,
        Retryable::OtherModel => return Decision::NextModel,
        Retryable::Later => {}
    }
    let most =
        if matches!(error, ModelError::Malformed { .. }) { retries.min(MAX_MALFORMED) } else { retries };
    if failures > most {
        return Decision::NextModel;
    }
    let doubled = FIRST_WAIT.saturating_mul(1 << (failures - 1).min(16)).min(MAX_WAIT);
    match error.retry_after() {
        Some(asked) if asked > MAX_RETRY_AFTER => Decision::NextModel,
        // Not before the requested time, and with jitter so that clients do not retry simultaneously.
        Some(asked) => Decision::Retry(asked + FIRST_WAIT.mul_f64(jitter)),
        None => Decision::Retry(doubled.mul_f64(0.5 + jitter / 2.0)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limited(retry_after: Option<u64>) -> ModelError {
        let retry_after = retry_after.map(Duration::from_secs);
        ModelError::RateLimited { model: "m".into(), retry_after, detail: String::new() }
    }

    #[test]
    fn delays_double_and_end() {
        let waits: Vec<Decision> = (1..=9).map(|failures| decide(&limited(None), failures, 8, 1.0)).collect();
        let expected =
            [1, 2, 4, 8, 16, 32, 60, 60].map(|seconds| Decision::Retry(Duration::from_secs(seconds)));
        assert_eq!(&waits[..8], expected);
        assert_eq!(waits[8], Decision::NextModel);
    }

    #[test]
    fn retry_after_is_respected_up_to_a_limit() {
        assert_eq!(decide(&limited(Some(7)), 1, 5, 0.0), Decision::Retry(Duration::from_secs(7)));
        assert_eq!(decide(&limited(Some(3600)), 1, 5, 0.0), Decision::NextModel);
    }

    #[test]
    fn permanent_errors_are_not_retried() {
        let auth = ModelError::Auth { model: "m".into(), detail: String::new() };
        assert_eq!(decide(&auth, 1, 5, 0.5), Decision::NextModel);
        let rejected = ModelError::Rejected { model: "m".into(), detail: String::new() };
        assert_eq!(decide(&rejected, 1, 5, 0.5), Decision::Fail);
        let malformed = ModelError::Malformed { model: "m".into(), detail: String::new() };
        assert!(matches!(decide(&malformed, 2, 5, 0.5), Decision::Retry(_)));
        assert_eq!(decide(&malformed, 3, 5, 0.5), Decision::NextModel);
    }

    proptest! {
        #[test]
        fn delays_are_at_least_retry_after_and_bounded(
            asked in proptest::option::of(0u64..300), failures in 1u32..1000, retries in 0u32..1000, jitter in 0.0f64..=1.0,
        ) {
            if let Decision::Retry(wait) = decide(&limited(asked), failures, retries, jitter) {
                prop_assert!(failures <= retries);
                prop_assert!(wait >= Duration::from_secs(asked.unwrap_or(0)));
                prop_assert!(wait <= MAX_RETRY_AFTER + FIRST_WAIT);
            }
        }
    }
}
