//! Logs the duration of each startup step.

use std::time::Instant;

use crate::spec::Trace;

/// Prints how long each step took since the previous one, if tracing is on.
pub(crate) struct Stopwatch {
    label: &'static str,
    start: Instant,
    last: Instant,
    trace: Trace,
}

impl Stopwatch {
    pub(crate) fn start(label: &'static str, trace: Trace) -> Self {
        let now = Instant::now();
        Self { label, start: now, last: now, trace }
    }

    /// Uses the same start time in another process.
    pub(crate) fn shared_with(&self, label: &'static str) -> Self {
        Self { label, start: self.start, last: Instant::now(), trace: self.trace }
    }

    /// Records the end of a step.
    pub(crate) fn lap(&mut self, step: &str) {
        if self.trace == Trace::On {
            let now = Instant::now();
            let (lap, total) = (now - self.last, now - self.start);
            eprintln!("{:>6} us  +{:>5} us  {} {step}", total.as_micros(), lap.as_micros(), self.label);
            self.last = now;
        }
    }
}
