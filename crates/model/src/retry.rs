//! Decides whether to retry, and with which model. Does no I/O; `chain.rs` does the waiting.

use std::time::Duration;

use crate::error::{ModelError, Retryable};

/// The delay before the first retry; it doubles each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The maximum delay, unless the provider asks for more.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// If a provider asks for a longer delay, the next model is used.
const LONGEST_PATIENCE: Duration = Duration::from_secs(300);
/// The maximum number of retries after malformed responses, which rarely get better.
const MOST_MALFORMED: u32 = 2;

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Retry the same model after a delay.
    Again(Duration),
    /// Use the next model, if there is one.
    Next,
    /// Return the error to the caller.
    Stop,
}

/// Decides after `failures` failed attempts (at least one) with the same model. `jitter` is between 0 and 1.
pub(crate) fn decide(error: &ModelError, failures: u32, retries: u32, jitter: f64) -> Decision {
    match error.retryable() {
        Retryable::No => return Decision::Stop,
        Retryable::OtherModel => return Decision::Next,
        Retryable::Later => {}
    }
    let most =
        if matches!(error, ModelError::Malformed { .. }) { retries.min(MOST_MALFORMED) } else { retries };
    if failures > most {
        return Decision::Next;
    }
    let doubled = FIRST_WAIT.saturating_mul(1 << (failures - 1).min(16)).min(LONGEST_WAIT);
    match error.retry_after() {
        Some(asked) if asked > LONGEST_PATIENCE => Decision::Next,
        // Not before the requested time, and with jitter so that clients do not retry simultaneously.
        Some(asked) => Decision::Again(asked + FIRST_WAIT.mul_f64(jitter)),
        None => Decision::Again(doubled.mul_f64(0.5 + jitter / 2.0)),
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
    fn waits_double_and_end() {
        let waits: Vec<Decision> = (1..=9).map(|failures| decide(&limited(None), failures, 8, 1.0)).collect();
        let expected =
            [1, 2, 4, 8, 16, 32, 60, 60].map(|seconds| Decision::Again(Duration::from_secs(seconds)));
        assert_eq!(&waits[..8], expected);
        assert_eq!(waits[8], Decision::Next);
    }

    #[test]
    fn what_the_provider_asks_for_is_kept_unless_it_is_too_much() {
        assert_eq!(decide(&limited(Some(7)), 1, 5, 0.0), Decision::Again(Duration::from_secs(7)));
        assert_eq!(decide(&limited(Some(3600)), 1, 5, 0.0), Decision::Next);
    }

    #[test]
    fn what_does_not_get_better_is_not_repeated() {
        let auth = ModelError::Auth { model: "m".into(), detail: String::new() };
        assert_eq!(decide(&auth, 1, 5, 0.5), Decision::Next);
        let rejected = ModelError::Rejected { model: "m".into(), detail: String::new() };
        assert_eq!(decide(&rejected, 1, 5, 0.5), Decision::Stop);
        let malformed = ModelError::Malformed { model: "m".into(), detail: String::new() };
        assert!(matches!(decide(&malformed, 2, 5, 0.5), Decision::Again(_)));
        assert_eq!(decide(&malformed, 3, 5, 0.5), Decision::Next);
    }

    proptest! {
        #[test]
        fn no_wait_is_shorter_than_asked_or_endless(
            asked in proptest::option::of(0u64..300), failures in 1u32..1000, retries in 0u32..1000, jitter in 0.0f64..=1.0,
        ) {
            if let Decision::Again(wait) = decide(&limited(asked), failures, retries, jitter) {
                prop_assert!(failures <= retries);
                prop_assert!(wait >= Duration::from_secs(asked.unwrap_or(0)));
                prop_assert!(wait <= LONGEST_PATIENCE + FIRST_WAIT);
            }
        }
    }
}
