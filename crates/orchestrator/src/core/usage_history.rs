//! The resource usage of a job's sandboxes over time: in memory while the job has a driver, and in a file of the job's
//! folder, which outlives the server and the sandbox.
//!
//! The newest samples are kept as they were taken. Older ones are merged, so that the whole life of a job fits into a
//! fixed number of samples.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Number of newest samples that are not merged: an hour with one sample every five seconds.
const RECENT: usize = 720;
/// Maximum number of samples.
const MAX_SAMPLES: usize = 1000;
/// Number of lines at which the file is replaced by one without the samples that have been merged.
const MAX_LINES: usize = 2 * MAX_SAMPLES;
/// Far more than this server writes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// What the sandbox used at one moment; for a merged sample, the most that it used since the previous sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsageSample {
    /// Unix time in milliseconds.
    pub(crate) time_ms: i64,
    /// CPU time of this sandbox so far. Starts over if the job gets another sandbox.
    pub(crate) cpu_micros: u64,
    pub(crate) memory_bytes: u64,
    /// The most memory that this sandbox has used so far.
    pub(crate) memory_peak_bytes: u64,
    pub(crate) disk_bytes: u64,
    /// Size of the disk.
    pub(crate) disk_total_bytes: u64,
    pub(crate) processes: u32,
}

impl UsageSample {
    /// One sample in place of two; short peaks stay visible.
    fn merge(self, later: Self) -> Self {
        Self {
            time_ms: later.time_ms,
            cpu_micros: later.cpu_micros,
            memory_bytes: self.memory_bytes.max(later.memory_bytes),
            memory_peak_bytes: self.memory_peak_bytes.max(later.memory_peak_bytes),
            disk_bytes: self.disk_bytes.max(later.disk_bytes),
            disk_total_bytes: later.disk_total_bytes,
            processes: self.processes.max(later.processes),
        }
    }
}

/// Adds a sample, and merges two older ones if there are too many.
fn push(samples: &mut Vec<UsageSample>, mut sample: UsageSample) {
    if let Some(last) = samples.last() {
        // Keep the order when the wall clock is set back.
        sample.time_ms = sample.time_ms.max(last.time_ms + 1);
    }
    samples.push(sample);
    if samples.len() <= MAX_SAMPLES {
        return;
    }
    // Merging the pair that covers the shortest time keeps the distances between the older samples about equal. What
    // a pair covers starts at the sample before it, so the first sample is never merged.
    let older = 2..samples.len() - RECENT;
    let covered_ms = |later: &usize| samples[*later].time_ms - samples[later - 2].time_ms;
    if let Some(later) = older.min_by_key(covered_ms) {
        samples[later] = samples[later - 1].merge(samples[later]);
        samples.remove(later - 1);
    }
}

/// The usage history of a job that has a driver.
#[derive(Default)]
pub(crate) struct UsageHistory {
    was_running: AtomicBool,
    /// `None` until the first sample is added.
    recorded: Mutex<Option<Recorded>>,
}

/// Samples, and the state of the file that has them, too.
#[derive(Default)]
struct Recorded {
    samples: Vec<UsageSample>,
    lines: usize,
    /// Whether the file lacks samples or has lines that are none.
    is_incomplete: bool,
}

impl UsageHistory {
    /// Whether to take a sample now: only if the sandbox was already running at the previous call, so that short jobs
    /// cost nothing.
    pub(crate) fn is_due(&self, is_running: bool) -> bool {
        self.was_running.swap(is_running, Ordering::Relaxed) && is_running
    }

    /// The newest sample that this server process has taken.
    pub(crate) fn newest(&self) -> Option<UsageSample> {
        self.lock().as_ref()?.samples.last().copied()
    }

    /// All samples, oldest first. May read the file.
    pub(crate) fn samples(&self, file: &Path) -> Vec<UsageSample> {
        let recorded = self.lock();
        recorded.as_ref().map_or_else(|| read_samples(file), |recorded| recorded.samples.clone())
    }

    /// Adds a sample to memory and to the file. If the file cannot be written, that is made up for later.
    ///
    /// # Errors
    /// The file cannot be written; only the first of several such errors is returned.
    pub(crate) fn add(&self, file: &Path, sample: UsageSample) -> io::Result<()> {
        let mut recorded = self.lock();
        let recorded = recorded.get_or_insert_with(|| Recorded::read(file));
        push(&mut recorded.samples, sample);
        let was_incomplete = recorded.is_incomplete;
        let written = recorded.write(file);
        recorded.is_incomplete = written.is_err();
        if was_incomplete { Ok(()) } else { written }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Recorded>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorded {
    /// Reads what an earlier server process has recorded.
    fn read(file: &Path) -> Self {
        let mut bytes = Vec::new();
        let read = File::open(file).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::default(),
            Err(_) => return Self { is_incomplete: true, ..Self::default() },
        }
        let mut recorded = Self { is_incomplete: !bytes.ends_with(b"\n"), ..Self::default() };
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            recorded.lines += 1;
            // The server was killed while it wrote this line.
            let Ok(sample) = serde_json::from_slice(line) else {
                recorded.is_incomplete = true;
                continue;
            };
            push(&mut recorded.samples, sample);
        }
        recorded
    }

    /// Writes the newest sample, or all of them if the file is incomplete or too long.
    fn write(&mut self, file: &Path) -> io::Result<()> {
        if self.is_incomplete || self.lines >= MAX_LINES {
            replace(file, &self.samples)?;
            self.lines = self.samples.len();
        } else if let Some(sample) = self.samples.last() {
            let mut file = OpenOptions::new().create(true).append(true).open(file)?;
            file.write_all(&line(sample)?)?;
            self.lines += 1;
        }
        Ok(())
    }
}

/// The samples in the file of a job without a driver, oldest first; empty if there are none.
pub(crate) fn read_samples(file: &Path) -> Vec<UsageSample> {
    Recorded::read(file).samples
}

fn line(sample: &UsageSample) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(sample)?;
    line.push(b'\n');
    Ok(line)
}

/// Replaces the file atomically.
fn replace(file: &Path, samples: &[UsageSample]) -> io::Result<()> {
    let partial = file.with_extension("jsonl.partial");
    let lines = samples.iter().map(line).collect::<io::Result<Vec<_>>>()?;
    let replaced = fs::write(&partial, lines.concat()).and_then(|()| fs::rename(&partial, file));
    if replaced.is_err() {
        let _ = fs::remove_file(&partial);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL_MS: i64 = 5000;

    fn sample(number: i64) -> UsageSample {
        UsageSample {
            time_ms: number * INTERVAL_MS,
            cpu_micros: number.unsigned_abs() * 1000,
            memory_bytes: 1 << 20,
            memory_peak_bytes: 2 << 20,
            disk_bytes: 1 << 10,
            disk_total_bytes: 1 << 30,
            processes: 3,
        }
    }

    fn merged(count: i64) -> Vec<UsageSample> {
        let mut samples = Vec::new();
        (1..=count).for_each(|number| push(&mut samples, sample(number)));
        samples
    }

    #[test]
    fn last_hour_of_a_day_is_complete_and_the_rest_is_evenly_spaced() {
        let day = 24 * RECENT as i64;
        let samples = merged(day);
        assert_eq!(samples.len(), MAX_SAMPLES);
        assert_eq!((samples[0], samples[MAX_SAMPLES - 1]), (sample(1), sample(day)));
        let gaps: Vec<i64> = samples.windows(2).map(|pair| pair[1].time_ms - pair[0].time_ms).collect();
        assert!(gaps[MAX_SAMPLES - RECENT..].iter().all(|gap| *gap == INTERVAL_MS));
        let even = (day - RECENT as i64) * INTERVAL_MS / (MAX_SAMPLES - RECENT) as i64;
        let longest = gaps.iter().max().unwrap();
        assert!(
            *longest <= 2 * even,
            "{longest} ms without a sample, evenly spaced they were {even} ms apart"
        );
    }

    #[test]
    fn merged_samples_keep_peaks_and_the_cpu_time() {
        let mut samples = merged(10);
        let peak = UsageSample { memory_bytes: 9 << 20, disk_bytes: 9 << 10, processes: 99, ..sample(11) };
        push(&mut samples, peak);
        (12..=5000).for_each(|number| push(&mut samples, sample(number)));
        let around = samples.iter().find(|sample| sample.time_ms >= peak.time_ms).unwrap();
        assert!(around.time_ms > peak.time_ms, "it is merged");
        assert_eq!(
            (around.memory_bytes, around.disk_bytes, around.processes),
            (peak.memory_bytes, peak.disk_bytes, peak.processes)
        );
        assert!(samples.iter().all(|sample| {
            i64::try_from(sample.cpu_micros).unwrap() * INTERVAL_MS == sample.time_ms * 1000
        }));
    }

    #[test]
    fn samples_stay_in_order_when_the_clock_is_set_back() {
        let mut samples = merged(3);
        push(&mut samples, sample(1));
        push(&mut samples, sample(2));
        assert!(samples.is_sorted_by(|a, b| a.time_ms < b.time_ms), "{samples:?}");
    }

    #[test]
    fn sample_is_due_once_the_sandbox_has_run_for_an_interval() {
        let history = UsageHistory::default();
        let due = [false, true, true, true, false, true, true].map(|is_running| history.is_due(is_running));
        assert_eq!(due, [false, false, true, true, false, false, true]);
    }

    #[test]
    fn file_has_the_same_samples_and_stays_short() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.jsonl");
        let history = UsageHistory::default();
        assert!(history.samples(&file).is_empty() && history.newest().is_none());
        let count = 3 * MAX_LINES as i64;
        for number in 1..=count {
            history.add(&file, sample(number)).unwrap();
            assert_eq!(history.newest(), Some(sample(number)));
        }
        assert_eq!(history.samples(&file), merged(count));
        assert_eq!(read_samples(&file), merged(count));
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!((MAX_SAMPLES..=MAX_LINES).contains(&lines), "{lines} lines");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn next_server_continues_the_file_and_drops_a_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.jsonl");
        UsageHistory::default().add(&file, sample(1)).unwrap();
        OpenOptions::new().append(true).open(&file).unwrap().write_all(b"{\"time_ms\":7").unwrap();
        let history = UsageHistory::default();
        assert_eq!(history.samples(&file), [sample(1)]);
        history.add(&file, sample(2)).unwrap();
        history.add(&file, sample(3)).unwrap();
        assert_eq!(history.samples(&file), merged(3));
        assert_eq!(
            fs::read(&file).unwrap(),
            merged(3).iter().flat_map(|s| line(s).unwrap()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn full_disk_delays_the_file_and_loses_no_sample() {
        let folder = tempfile::tempdir().unwrap();
        let [file, partial] = ["usage.jsonl", "usage.jsonl.partial"].map(|name| folder.path().join(name));
        for path in [&file, &partial] {
            // Every write fails because the disk is full.
            std::os::unix::fs::symlink("/dev/full", path).unwrap();
        }
        let history = UsageHistory::default();
        *history.lock() = Some(Recorded::default());
        assert_eq!(history.add(&file, sample(1)).unwrap_err().kind(), io::ErrorKind::StorageFull);
        history.add(&file, sample(2)).expect("the failure is reported once");
        assert!(!partial.exists() && history.samples(&file) == merged(2));
        // The link is gone, which is as good as room on the disk.
        history.add(&file, sample(3)).unwrap();
        assert_eq!(read_samples(&file), merged(3));
    }
}
