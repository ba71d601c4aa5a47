//! Time limits of calls. The host may freeze the whole sandbox, including the guest; frozen time does not count.

use std::time::{Duration, Instant};

/// Sleep in pieces of this length. A piece that takes much longer shows that the guest was frozen.
const PIECE: Duration = Duration::from_secs(2);
/// How much longer than planned a piece may take on a busy machine.
const SLACK: Duration = Duration::from_secs(1);

/// Sleeps for `left`, not counting the time during which the guest was frozen.
pub(crate) async fn sleep(mut left: Duration) {
    while !left.is_zero() {
        let (piece, since) = (left.min(PIECE), Instant::now());
        tokio::time::sleep(piece).await;
        left = left.saturating_sub(counted_time(piece, since.elapsed()));
    }
}

/// How much of the time taken by a piece counts.
fn counted_time(piece: Duration, taken: Duration) -> Duration {
    taken.min(piece + SLACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frozen_time_does_not_count_but_scheduling_delay_does() {
        let seconds = Duration::from_secs;
        assert_eq!(counted_time(seconds(2), Duration::from_millis(2300)), Duration::from_millis(2300));
        assert_eq!(counted_time(seconds(2), seconds(600)), seconds(3));
    }
}
