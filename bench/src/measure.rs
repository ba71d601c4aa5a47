//! How often to measure, and statistics over the measurements.

use std::time::{Duration, Instant};

use serde::Serialize;

/// How often to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Runs of slow operations: sandboxes, containers, jobs.
    pub(crate) runs: usize,
    /// Runs of operations that take a millisecond.
    pub(crate) short_runs: usize,
    /// Runs with many sandboxes at once.
    pub(crate) crowd_runs: usize,
    /// The duration of each of the `runs` slices of load.
    pub(crate) load_slice: Duration,
}

impl Plan {
    /// For meaningful results.
    pub(crate) const FULL: Self =
        Self { runs: 30, short_runs: 300, crowd_runs: 30, load_slice: Duration::from_millis(250) };
    /// For trying the benchmarks.
    pub(crate) const QUICK: Self =
        Self { runs: 5, short_runs: 30, crowd_runs: 2, load_slice: Duration::from_millis(400) };
}

/// How long cleanup after one run may disturb the next.
const SETTLE: Duration = Duration::from_millis(30);

/// Lets the machine settle between two runs.
pub(crate) async fn settle() {
    tokio::time::sleep(SETTLE).await;
}

/// How long a sandbox or container must be without work to count as idle. Longer than our programs wait before they
/// return memory to the kernel.
const IDLE: Duration = Duration::from_secs(2);

/// Waits until a sandbox is idle.
pub(crate) async fn wait_until_idle() {
    tokio::time::sleep(IDLE).await;
}

/// Repeated measurements of one quantity.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Adds the time since `start`, in milliseconds.
    pub(crate) fn since(&mut self, start: Instant) {
        self.add(milliseconds(start.elapsed()));
    }

    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        Summary { median: percentile(&sorted, 50), p90: percentile(&sorted, 90), runs: sorted.len() }
    }

    /// Like [`Self::summary`], for rates, where more is better: `p90` is the value that 90 percent exceed.
    pub(crate) fn summary_of_rates(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        Summary { median: percentile(&sorted, 50), p90: percentile(&sorted, 90), runs: sorted.len() }
    }
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The percentile; for an even number of values the median is the mean of the middle two.
fn percentile(sorted: &[f64], hundredths: usize) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let last = sorted.len() - 1;
    let (low, high) = (last * hundredths / 100, (last * hundredths).div_ceil(100));
    f64::midpoint(sorted[low], sorted[high])
}

/// Statistics of repeated measurements.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    /// The value that nine of ten runs do not exceed.
    pub(crate) p90: f64,
    pub(crate) runs: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle_and_the_p90_near_the_end() {
        let mut samples = Samples::default();
        for value in [5.0, 1.0, 2.0, 4.0, 3.0, 6.0, 11.0, 8.0, 9.0, 10.0, 7.0] {
            samples.add(value);
        }
        let summary = samples.summary();
        assert_eq!((summary.median, summary.p90, summary.runs), (6.0, 10.0, 11));
        assert_eq!(samples.summary_of_rates().p90, 2.0);
        samples.add(12.0);
        assert_eq!(samples.summary().median, 6.5);
    }
}
