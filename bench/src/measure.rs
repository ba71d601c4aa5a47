//! How often things are measured, and what many measurements come to.

use std::time::{Duration, Instant};

use serde::Serialize;

/// How often things are measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Runs of what takes long: sandboxes, containers, jobs.
    pub(crate) runs: usize,
    /// Runs of what takes a millisecond.
    pub(crate) short_runs: usize,
    /// Runs of many at once.
    pub(crate) crowd_runs: usize,
    /// How long each of `runs` slices of load lasts.
    pub(crate) load_slice: Duration,
}

impl Plan {
    /// What the figures are worth something with.
    pub(crate) const FULL: Self =
        Self { runs: 30, short_runs: 300, crowd_runs: 30, load_slice: Duration::from_millis(250) };
    /// For trying.
    pub(crate) const QUICK: Self =
        Self { runs: 5, short_runs: 30, crowd_runs: 2, load_slice: Duration::from_millis(400) };
}

/// How long what was left behind by one run may disturb the next.
const SETTLE: Duration = Duration::from_millis(30);

/// Lets the machine come to rest between two runs.
pub(crate) async fn settle() {
    tokio::time::sleep(SETTLE).await;
}

/// An idle sandbox has had no work for a moment; so has a container beside it. Longer than our programs wait until they give
/// memory back.
const IDLE: Duration = Duration::from_secs(2);

/// Waits until a sandbox is idle.
pub(crate) async fn become_idle() {
    tokio::time::sleep(IDLE).await;
}

/// Many measurements of one thing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Adds the time since then, in milliseconds.
    pub(crate) fn since(&mut self, start: Instant) {
        self.add(milliseconds(start.elapsed()));
    }

    /// Adds a measurement.
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// What they come to.
    pub(crate) fn summary(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        Summary { median: percentile(&sorted, 50), p90: percentile(&sorted, 90), runs: sorted.len() }
    }

    /// The same where more is better: the tenth part that was worst takes the place of the p90.
    pub(crate) fn summary_of_rates(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        Summary { median: percentile(&sorted, 50), p90: percentile(&sorted, 90), runs: sorted.len() }
    }
}

/// A duration as a number for people.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The value below which so many hundredths lie; with an even number the median is the mean of the middle two.
fn percentile(sorted: &[f64], hundredths: usize) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let last = sorted.len() - 1;
    let (low, high) = (last * hundredths / 100, (last * hundredths).div_ceil(100));
    f64::midpoint(sorted[low], sorted[high])
}

/// What many measurements come to.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Summary {
    /// Half were better.
    pub(crate) median: f64,
    /// Nine of ten were better.
    pub(crate) p90: f64,
    /// How many there were.
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
