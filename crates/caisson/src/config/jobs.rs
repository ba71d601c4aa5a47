//! Checks the sections of the configuration that concern jobs: `jobs`, `egress`, `retention`, `desktop`, `pool`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use job::{DesktopSettings, NewDesktop};
use orchestrator::{OnShutdown, Settings};
use serde::Deserialize;

use super::egress::RawEgress;
use super::limits::RawLimits;

/// Thirty days.
const LONGEST_S: u64 = 2_592_000;
/// The CA bundle on Debian and its derivatives.
const HOST_CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// How long a stopping server waits for running jobs, if it waits for them.
const DEFAULT_SHUTDOWN_PATIENCE_S: u64 = 600;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawJobs {
    pub(crate) image: Option<String>,
    pub(crate) max_running: Option<usize>,
    pub(crate) max_queued: Option<usize>,
    pub(crate) max_sandboxes: Option<usize>,
    pub(crate) wall_clock_s: Option<u64>,
    pub(crate) step_timeout_s: Option<u64>,
    pub(crate) max_losses: Option<u32>,
    pub(crate) on_shutdown: Option<RawOnShutdown>,
    pub(crate) shutdown_grace_s: Option<u64>,
}

/// What happens to running jobs when the server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawOnShutdown {
    Leave,
    Wait,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPool {
    pub(crate) size: Option<usize>,
    pub(crate) images: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawDesktop {
    pub(crate) width: Option<u16>,
    pub(crate) height: Option<u16>,
    pub(crate) idle_s: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRetention {
    pub(crate) days: Option<u64>,
    pub(crate) payload_days: Option<u64>,
    pub(crate) max_gib: Option<u64>,
}

/// The settings of jobs: concurrency, timeouts, limits, retention.
pub(crate) fn job_settings(
    jobs: &RawJobs,
    limits: &RawLimits,
    egress: &RawEgress,
    retention: &RawRetention,
) -> Result<Settings> {
    let mut settings = Settings::default();
    if let Some(count) = jobs.max_running {
        ensure!((1..=10_000).contains(&count), "jobs.max_running: {count} is not between 1 and 10000");
        settings.max_running = count;
    }
    settings.default_image.clone_from(&jobs.image);
    settings.max_queued = jobs.max_queued.unwrap_or(settings.max_queued);
    settings.max_sandboxes = jobs.max_sandboxes.unwrap_or(settings.max_sandboxes);
    settings.max_losses = jobs.max_losses.unwrap_or(settings.max_losses);
    settings.on_shutdown = shutdown_settings(jobs)?;
    if let Some(seconds) = jobs.wall_clock_s {
        settings.defaults.wall_clock = duration("wall_clock_s", seconds)?;
    }
    if let Some(seconds) = jobs.step_timeout_s {
        settings.defaults.step_timeout = duration("step_timeout_s", seconds)?;
    }
    settings.defaults.limits = limits.defaults(settings.defaults.limits)?;
    settings.defaults.egress = egress.default.clone().unwrap_or_default();
    settings.egress_ranges = egress::Ranges {
        deny_ranges: egress.deny_ranges.clone().unwrap_or_default(),
        allow: egress.allow_ranges.clone().unwrap_or_default(),
    };
    settings.extra_ca = read_certificates(egress.extra_ca.as_deref())?.into();
    if let Some(days) = retention.days {
        settings.retention_age = Duration::from_secs(days.saturating_mul(86_400));
    }
    settings.retention_payload_age =
        retention.payload_days.map(|days| Duration::from_secs(days.saturating_mul(86_400)));
    if let Some(gib) = retention.max_gib {
        settings.retention_bytes = gib.saturating_mul(1024 * 1024 * 1024);
    }
    Ok(settings)
}

/// The desktop of jobs that do not specify one.
pub(crate) fn desktop_settings(raw: &RawDesktop) -> Result<DesktopSettings> {
    let requested = NewDesktop { width: raw.width, height: raw.height, record: None };
    let mut desktop = requested.check(DesktopSettings::default())?;
    // Programs are only told of the desktop if their job specifies one.
    desktop.is_announced = false;
    if let Some(seconds) = raw.idle_s {
        ensure!((1..=86_400).contains(&seconds), "desktop.idle_s: {seconds} is not between 1 and 86400");
        desktop.idle = Duration::from_secs(seconds);
    }
    Ok(desktop)
}

/// The images to keep pooled sandboxes for.
pub(crate) fn pool_images(raw: RawPool) -> Result<Vec<String>> {
    let images = raw.images.unwrap_or_default();
    ensure!(images.len() <= 100, "pool.images: {} images are more than the maximum of 100", images.len());
    for (index, name) in images.iter().enumerate() {
        ensure!(!name.is_empty(), "pool.images: contains an empty name");
        ensure!(!images[..index].contains(name), "pool.images: `{name}` is listed twice");
    }
    Ok(images)
}

/// The number of pooled sandboxes per image.
pub(crate) fn pool_size(raw: &RawPool) -> Result<usize> {
    let size = raw.size.unwrap_or(0);
    ensure!(size <= 1000, "pool.size: {size} is not between 0 and 1000");
    Ok(size)
}

fn shutdown_settings(jobs: &RawJobs) -> Result<OnShutdown> {
    let patience_s = jobs.shutdown_grace_s.unwrap_or(DEFAULT_SHUTDOWN_PATIENCE_S);
    ensure!(
        patience_s > 0,
        "jobs.shutdown_grace_s: must be at least 1; to stop without waiting, set on_shutdown = \"leave\""
    );
    Ok(match jobs.on_shutdown {
        None | Some(RawOnShutdown::Leave) => OnShutdown::Leave,
        Some(RawOnShutdown::Wait) => OnShutdown::Wait(duration("shutdown_grace_s", patience_s)?),
    })
}

/// Limited to what a request may ask for.
fn duration(name: &str, seconds: u64) -> Result<Duration> {
    ensure!((1..=LONGEST_S).contains(&seconds), "jobs.{name}: {seconds} is not between 1 and {LONGEST_S}");
    Ok(Duration::from_secs(seconds))
}

/// The certificates that sandboxes trust in addition to their image's own. The default is the host's bundle, so that
/// a company's own CA works inside as it does outside.
fn read_certificates(files: Option<&[PathBuf]>) -> Result<Vec<String>> {
    match files {
        Some(files) => files
            .iter()
            .map(|file| {
                std::fs::read_to_string(file)
                    .with_context(|| format!("egress.extra_ca: reading {}", file.display()))
            })
            .collect(),
        None => Ok(std::fs::read_to_string(HOST_CA_BUNDLE).into_iter().collect()),
    }
}
