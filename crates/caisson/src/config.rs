//! The checked configuration: flags over environment over file over defaults. The only file that reads the
//! environment.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use orchestrator::{OnShutdown, Settings};
use sandbox::{Limit, Limits};
use server::ServerSettings;

use crate::cli::HostArguments;
use crate::config_file::{
    LogFormat, RawConfig, RawEgress, RawHttp, RawJobs, RawLimits, RawOnShutdown, RawPool, RawRetention,
    RawSandbox,
};
use crate::config_places::Places;
use crate::logging;

/// Where the configuration is when nobody says otherwise.
const DEFAULT_CONFIG: &str = "/etc/caisson/caisson.toml";
/// The bundle of certificates that Debian and its like keep.
const HOST_CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// How long running jobs are waited for at the end, where they are.
const DEFAULT_SHUTDOWN_PATIENCE_S: u64 = 600;

/// Checked settings.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) insecure_listen: bool,
    pub(crate) data: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) places: Places,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) jobs: Settings,
    pub(crate) http: ServerSettings,
    pub(crate) sandbox: SandboxSettings,
}

/// Settings of the namespace backend that differ from its own defaults.
#[derive(Debug, Clone)]
pub(crate) struct SandboxSettings {
    pub(crate) first_uid: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) cgroup_parent: Option<String>,
    pub(crate) ready_disks: Option<usize>,
}

impl Config {
    /// Reads and checks everything.
    pub(crate) fn load(
        arguments: &HostArguments,
        listen_flags: &[SocketAddr],
        insecure_flag: bool,
    ) -> Result<Self> {
        let raw = read_file(arguments.config.as_deref())?;
        Self::from_raw(raw, arguments, listen_flags, insecure_flag)
    }

    /// Checks what a file says, with flags and environment on top.
    pub(crate) fn from_raw(
        raw: RawConfig,
        arguments: &HostArguments,
        listen_flags: &[SocketAddr],
        insecure_flag: bool,
    ) -> Result<Self> {
        let listen = pick_listen(listen_flags, raw.listen)?;
        let insecure_listen = insecure_flag || raw.insecure_listen.unwrap_or(false);
        check_listen(&listen, insecure_listen)?;
        let places = Places::of(rustix::process::geteuid().as_raw(), variable)?;
        let data = pick_path(arguments.data.as_deref(), "CAISSON_DATA", raw.data, &places.data)?;
        let run_default = places.run_dir_of(&data);
        let run_dir = pick_path(arguments.run_dir.as_deref(), "CAISSON_RUN_DIR", raw.run_dir, &run_default)?;
        let mut http = http_settings(&raw.http)?;
        http.allowed_hosts = raw.allowed_hosts.unwrap_or_default();
        if insecure_listen && http.allowed_hosts.is_empty() {
            http.allowed_hosts = vec!["*".into()];
        }
        http.public_url = raw.public_url;
        let log = variable("CAISSON_LOG").or(raw.log).unwrap_or_else(|| "info".into());
        logging::filter(&log)?;
        let mut jobs = job_settings(&raw.jobs, &raw.limits, raw.egress, &raw.retention)?;
        jobs.pool_size = pool_size(&raw.pool)?;
        Ok(Self {
            listen,
            insecure_listen,
            data,
            run_dir,
            places,
            log,
            log_format: raw.log_format.unwrap_or_default(),
            jobs,
            http,
            sandbox: sandbox_settings(raw.sandbox)?,
        })
    }
}

/// A variable of the environment; an empty one counts as absent.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The configuration file: the flag's, the environment's, or the usual one where it is there.
pub(crate) fn file(flag: Option<&Path>) -> Option<PathBuf> {
    let named = flag.map(Path::to_owned).or_else(|| variable("CAISSON_CONFIG").map(PathBuf::from));
    named.or_else(|| Some(PathBuf::from(DEFAULT_CONFIG)).filter(|path| path.exists()))
}

fn read_file(flag: Option<&Path>) -> Result<RawConfig> {
    let Some(path) = file(flag) else { return Ok(RawConfig::default()) };
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("reading the configuration {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("in the configuration {}", path.display()))
}

fn pick_listen(flags: &[SocketAddr], file: Option<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>> {
    if !flags.is_empty() {
        return Ok(flags.to_vec());
    }
    if let Some(text) = variable("CAISSON_LISTEN") {
        return text
            .split(',')
            .map(|part| {
                let part = part.trim();
                part.parse().with_context(|| {
                    format!("CAISSON_LISTEN: `{part}` is not an address such as 127.0.0.1:8000")
                })
            })
            .collect();
    }
    match file {
        Some(list) if list.is_empty() => bail!("listen: is empty; give at least one address"),
        Some(list) => Ok(list),
        None => Ok(vec![SocketAddr::from(([127, 0, 0, 1], 8000))]),
    }
}

/// Without keys, whoever reaches the server owns it; so it must not be reached from outside by accident.
fn check_listen(listen: &[SocketAddr], insecure: bool) -> Result<()> {
    match listen.iter().find(|address| !address.ip().is_loopback()) {
        Some(address) if !insecure => bail!(
            "listen: {address} can be reached by others, and this server asks nobody to log in: whoever reaches it \
             can run anything. Use a loopback address such as 127.0.0.1, or say --insecure-listen \
             (insecure_listen = true) if something in front of it lets only the right people through"
        ),
        _ => Ok(()),
    }
}

fn pick_path(flag: Option<&Path>, name: &str, file: Option<PathBuf>, default: &Path) -> Result<PathBuf> {
    let path = flag
        .map(Path::to_owned)
        .or_else(|| variable(name).map(PathBuf::from))
        .or(file)
        .unwrap_or_else(|| default.into());
    std::path::absolute(&path).with_context(|| format!("finding the folder {}", path.display()))
}

fn job_settings(
    jobs: &RawJobs,
    limits: &RawLimits,
    egress: RawEgress,
    retention: &RawRetention,
) -> Result<Settings> {
    let mut settings = Settings::default();
    if let Some(count) = jobs.max_running {
        ensure!((1..=10_000).contains(&count), "jobs.max_running: {count} is not between 1 and 10000");
        settings.max_running = count;
    }
    settings.max_queued = jobs.max_queued.unwrap_or(settings.max_queued);
    settings.max_sandboxes = jobs.max_sandboxes.unwrap_or(settings.max_sandboxes);
    settings.max_losses = jobs.max_losses.unwrap_or(settings.max_losses);
    settings.on_shutdown = shutdown_settings(jobs)?;
    if let Some(seconds) = jobs.wall_clock_s {
        ensure!(seconds > 0, "jobs.wall_clock_s: must be at least 1");
        settings.defaults.wall_clock = Duration::from_secs(seconds);
    }
    if let Some(seconds) = jobs.step_timeout_s {
        ensure!(seconds > 0, "jobs.step_timeout_s: must be at least 1");
        settings.defaults.step_timeout = Duration::from_secs(seconds);
    }
    settings.defaults.limits = limit_settings(limits, settings.defaults.limits)?;
    settings.defaults.egress = egress.default.unwrap_or_default();
    settings.egress_ranges = egress::Ranges {
        refuse_also: egress.refuse_also.unwrap_or_default(),
        allow: egress.allow_ranges.unwrap_or_default(),
    };
    settings.extra_ca = read_certificates(egress.extra_ca)?;
    if let Some(days) = retention.days {
        settings.retention_age = Duration::from_secs(days.saturating_mul(86_400));
    }
    if let Some(gib) = retention.max_gib {
        settings.retention_bytes = gib.saturating_mul(1024 * 1024 * 1024);
    }
    Ok(settings)
}

fn pool_size(raw: &RawPool) -> Result<usize> {
    let size = raw.size.unwrap_or(0);
    ensure!(size <= 1000, "pool.size: {size} is not between 0 and 1000");
    Ok(size)
}

fn shutdown_settings(jobs: &RawJobs) -> Result<OnShutdown> {
    let patience_s = jobs.shutdown_patience_s.unwrap_or(DEFAULT_SHUTDOWN_PATIENCE_S);
    ensure!(
        patience_s > 0,
        "jobs.shutdown_patience_s: must be at least 1; to wait for nothing, say on_shutdown = \"leave\""
    );
    Ok(match jobs.on_shutdown {
        None | Some(RawOnShutdown::Leave) => OnShutdown::Leave,
        Some(RawOnShutdown::Wait) => OnShutdown::Wait(Duration::from_secs(patience_s)),
    })
}

fn limit_settings(raw: &RawLimits, defaults: Limits) -> Result<Limits> {
    let pick = |name: &str, value: Option<u64>, default: Limit, least: u64| match value {
        None => Ok(default),
        Some(value) if value < least => bail!("limits.{name}: {value} is less than {least}"),
        Some(value) => Ok(Limit::Default(value)),
    };
    let cpu_millis = match raw.cpus {
        None => defaults.cpu_millis,
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just here")]
        Some(cpus) if (0.01..=1024.0).contains(&cpus) => Limit::Default((cpus * 1000.0) as u64),
        Some(cpus) => bail!("limits.cpus: {cpus} is not between 0.01 and 1024"),
    };
    Ok(Limits {
        memory_mib: pick("memory_mib", raw.memory_mib, defaults.memory_mib, 16)?,
        cpu_millis,
        pids: pick("pids", raw.pids, defaults.pids, 8)?,
        open_files: pick("open_files", raw.open_files, defaults.open_files, 64)?,
        disk_mib: pick("disk_mib", raw.disk_mib, defaults.disk_mib, 16)?,
    })
}

/// The certificates that sandboxes trust beside their image's own. Without a setting: those of this host, so that a
/// company's own authority works inside as it does outside.
fn read_certificates(files: Option<Vec<PathBuf>>) -> Result<Vec<String>> {
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

fn http_settings(raw: &RawHttp) -> Result<ServerSettings> {
    let mut settings = ServerSettings::default();
    if let Some(mib) = raw.max_json_mib {
        ensure!((1..=1024).contains(&mib), "http.max_json_mib: {mib} is not between 1 and 1024");
        settings.max_json_bytes = mib * 1024 * 1024;
    }
    if let Some(count) = raw.max_connections {
        ensure!(count > 0, "http.max_connections: must be at least 1");
        settings.max_connections = count;
    }
    let seconds = |value: Option<u64>, default| value.map_or(default, Duration::from_secs);
    settings.header_timeout = seconds(raw.header_timeout_s, settings.header_timeout);
    settings.request_timeout = seconds(raw.request_timeout_s, settings.request_timeout);
    settings.idle_timeout = seconds(raw.idle_timeout_s, settings.idle_timeout);
    Ok(settings)
}

fn sandbox_settings(raw: RawSandbox) -> Result<SandboxSettings> {
    if let Some(parent) = &raw.cgroup_parent {
        let good =
            !parent.is_empty() && parent.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        ensure!(good, "sandbox.cgroup_parent: `{parent}` is not a plain name");
    }
    if let Some(slots) = raw.slots {
        ensure!((1..=32_768).contains(&slots), "sandbox.slots: {slots} is not between 1 and 32768");
    }
    Ok(SandboxSettings {
        first_uid: raw.first_uid,
        slots: raw.slots,
        cgroup_parent: raw.cgroup_parent,
        ready_disks: raw.ready_disks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(file: &Path) -> HostArguments {
        HostArguments { config: Some(file.to_owned()), data: None, run_dir: None }
    }

    fn load(text: &str) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("caisson.toml");
        std::fs::write(&file, text).unwrap();
        Config::load(&arguments(&file), &[], false)
    }

    fn is_setting(line: &str) -> bool {
        line.split_once(" = ").is_some_and(|(name, _)| !name.contains(' '))
    }

    #[test]
    fn the_example_lists_every_setting_with_its_default() {
        let example = include_str!("../../../caisson.example.toml");
        let plain =
            Config::load(&HostArguments { config: None, data: None, run_dir: None }, &[], false).unwrap();
        let uncommented: String = example
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| is_setting(rest)).unwrap_or(line))
            .map(|line| format!("{line}\n"))
            .collect();
        let shown = load(&uncommented).unwrap();
        assert_eq!(shown.listen, plain.listen);
        assert_eq!(shown.jobs.defaults.limits, plain.jobs.defaults.limits);
        assert_eq!(shown.jobs.max_queued, plain.jobs.max_queued);
        assert_eq!(shown.http.max_json_bytes, plain.http.max_json_bytes);
        assert_eq!(shown.jobs.retention_age, plain.jobs.retention_age);
    }

    #[test]
    fn an_unknown_key_is_refused_with_file_and_line() {
        let error = format!("{:#}", load("listen = [\"127.0.0.1:8000\"]\ncolour = 1\n").unwrap_err());
        assert!(
            error.contains("caisson.toml") && error.contains("line 2") && error.contains("colour"),
            "{error}"
        );
    }

    #[test]
    fn an_address_that_others_can_reach_needs_a_word() {
        let error = load("listen = [\"0.0.0.0:8000\"]").unwrap_err().to_string();
        assert!(error.contains("insecure-listen"), "{error}");
        assert!(load("listen = [\"0.0.0.0:8000\"]\ninsecure_listen = true").is_ok());
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (text, key) in [
            ("[limits]\nmemory_mib = 1", "limits.memory_mib"),
            ("[limits]\ncpus = 0.0", "limits.cpus"),
            ("[jobs]\nmax_running = 0", "jobs.max_running"),
            ("[http]\nmax_json_mib = 0", "http.max_json_mib"),
            ("[sandbox]\ncgroup_parent = \"a/b\"", "sandbox.cgroup_parent"),
        ] {
            let error = format!("{:#}", load(text).unwrap_err());
            assert!(error.contains(key), "{text}: {error}");
        }
    }
}
