//! The checked configuration: flags override the environment, which overrides the file, which overrides the defaults.
//! The only file that reads the environment.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use orchestrator::{Settings, StoredKeys};
use sandbox::Isolation;
use sandbox::namespace::{DEFAULT_SLOTS, UIDS_PER_SANDBOX};
use server::ServerSettings;

use crate::cli::HostArguments;
use crate::config_backend::{self, BackendChoice, DockerSettings};
use crate::config_check;
use crate::config_file::{LogFormat, RawConfig, RawExpose, RawHttp, RawIsolation, RawSandbox};
use crate::config_jobs::{desktop_settings, job_settings, pool_images, pool_size};
use crate::config_limits::HostTotals;
use crate::config_places::Places;
use crate::logging;
use crate::telemetry::Telemetry;

/// The default path of the configuration.
const DEFAULT_CONFIG: &str = "/etc/caisson/caisson.toml";

/// Checked settings.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) insecure_listen: bool,
    pub(crate) data: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) images: PathBuf,
    pub(crate) places: Places,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    /// The trace collector, if configured.
    pub(crate) telemetry: Option<Telemetry>,
    pub(crate) jobs: Settings,
    pub(crate) http: ServerSettings,
    pub(crate) sandbox: SandboxSettings,
    /// The second listener, for previews of what jobs serve.
    pub(crate) preview_listen: Vec<SocketAddr>,
    /// Ports that forward to the newest running job.
    pub(crate) expose: RawExpose,
    pub(crate) backend: BackendChoice,
    pub(crate) docker: DockerSettings,
    pub(crate) model: model::Settings,
}

/// Settings that override the defaults of the namespace backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxSettings {
    pub(crate) first_uid: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) cgroup_parent: Option<String>,
    pub(crate) ready_disks: Option<usize>,
    /// Whether to log the files that jobs access.
    pub(crate) list_files: Option<bool>,
    /// Whether the disks of all sandboxes together may be larger than the host's disk.
    pub(crate) disk_overcommit: bool,
}

impl Config {
    /// Loads and checks the configuration. The error lists all problems, each with its line.
    pub(crate) fn load(
        arguments: &HostArguments,
        listen_flags: &[SocketAddr],
        insecure_flag: bool,
    ) -> Result<Self> {
        let loaded = read_file(arguments.config.as_deref())
            .and_then(|raw| Self::from_raw(raw, arguments, listen_flags, insecure_flag));
        loaded.map_err(|error| config_check::explain(&error, arguments, listen_flags, insecure_flag))
    }

    /// Checks the settings of a file, overridden by flags and environment.
    pub(crate) fn from_raw(
        raw: RawConfig,
        arguments: &HostArguments,
        listen_flags: &[SocketAddr],
        insecure_flag: bool,
    ) -> Result<Self> {
        let listen = pick_listen(listen_flags, raw.listen)?;
        let insecure_listen = insecure_flag || raw.insecure_listen.unwrap_or(false);
        let preview_listen = raw.preview_listen.unwrap_or_default();
        if let Some(address) = preview_listen.iter().find(|address| !address.ip().is_loopback()) {
            bail!("preview_listen: {address} can be reached by others; only loopback addresses are allowed");
        }
        let places = Places::of(rustix::process::geteuid().as_raw(), variable)?;
        let data = pick_path(arguments.data.as_deref(), "CAISSON_DATA", raw.data, &places.data)?;
        let asks = raw.oidc.issuer.is_some();
        check_listen(&listen, insecure_listen || asks, &data)?;
        let run_default = places.run_dir_of(&data);
        let run_dir = pick_path(arguments.run_dir.as_deref(), "CAISSON_RUN_DIR", raw.run_dir, &run_default)?;
        let images = pick_path(None, "CAISSON_IMAGES", raw.images, &data.join("images"))?;
        let mut http = http_settings(&raw.http)?;
        http.allowed_hosts = raw.allowed_hosts.unwrap_or_default();
        // A server that others can reach has host names that it does not know. Keys or a reverse proxy keep strangers
        // out.
        let is_reached = listen.iter().any(|address| !address.ip().is_loopback());
        if (insecure_listen || is_reached) && http.allowed_hosts.is_empty() {
            http.allowed_hosts = vec!["*".into()];
        }
        http.job_domain =
            raw.job_domain.map(|domain| job_domain(&domain, raw.public_url.as_deref(), &http)).transpose()?;
        http.public_url = raw.public_url;
        http.trusted_proxies = raw.trusted_proxies.unwrap_or_default();
        http.certificate = raw.tls.certificate()?;
        http.oidc = raw.oidc.settings()?;
        let log = variable("CAISSON_LOG").or(raw.log).unwrap_or_else(|| "info".into());
        logging::filter(&log)?;
        let mut jobs = job_settings(&raw.jobs, &raw.limits, &raw.egress, &raw.retention)?;
        crate::config_egress::apply(&mut jobs, &raw.egress, raw.secrets)?;
        jobs.pool_size = pool_size(&raw.pool)?;
        jobs.pool_images = pool_images(raw.pool)?;
        jobs.defaults.desktop = desktop_settings(&raw.desktop)?;
        crate::config_agent::apply(&mut jobs, raw.agent)?;
        jobs.context = raw.context.settings()?;
        jobs.defaults.mcp = crate::config_mcp::servers(raw.mcp)?;
        let model = raw.model.settings()?;
        jobs.model = model.clone();
        jobs.defaults.isolation = match raw.sandbox.isolation {
            Some(RawIsolation::Landlock) => Isolation::Landlock,
            Some(RawIsolation::Namespaces) | None => Isolation::Namespaces,
        };
        if let Some(mib) = raw.sandbox.disk_reserve_mib {
            let most = 1_048_576;
            ensure!((1..=most).contains(&mib), "sandbox.disk_reserve_mib: {mib} is not between 1 and {most}");
            jobs.disk_reserve_bytes = mib << 20;
        }
        let backend = config_backend::choose(arguments.backend.as_deref(), raw.backend.kind)?;
        let docker = config_backend::docker_settings(raw.docker)?;
        let is_elsewhere = backend == BackendChoice::Docker && !docker.is_on_this_host();
        let host = if is_elsewhere { HostTotals::default() } else { HostTotals::of_this_host(&data) };
        jobs.ceilings = raw.limits.ceilings(jobs.defaults.limits, host)?;
        // The same defaults as for a job without limits, so that pooled sandboxes fit such jobs.
        jobs.defaults.limits = jobs.ceilings.of(None, None).bound(jobs.defaults.limits)?;
        Ok(Self {
            listen,
            insecure_listen,
            data,
            run_dir,
            images,
            places,
            log,
            log_format: raw.log_format.unwrap_or_default(),
            telemetry: Telemetry::check(raw.telemetry.otlp_endpoint, raw.telemetry.service_name)?,
            jobs,
            http,
            sandbox: sandbox_settings(raw.sandbox)?,
            preview_listen,
            expose: check_expose(raw.expose)?,
            backend,
            docker,
            model,
        })
    }
}

/// An environment variable; `None` if it is empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Path of the configuration file: from the flag, the environment, or the default path if it exists.
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

fn check_expose(expose: RawExpose) -> Result<RawExpose> {
    let ports = [("novnc", expose.novnc), ("jupyter", expose.jupyter), ("vnc", expose.vnc)];
    for (index, (name, port)) in ports.iter().enumerate() {
        ensure!(*port != Some(0), "expose.{name}: 0 is not a port; leave the key out to switch it off");
        let twin = ports.iter().take(index).find(|(_, other)| port.is_some() && other == port);
        if let Some((other, _)) = twin {
            bail!("expose.{name}: is the same port as expose.{other}");
        }
    }
    Ok(expose)
}

/// Checks the base domain for job previews: the API must not be served there.
fn job_domain(domain: &str, public_url: Option<&str>, http: &ServerSettings) -> Result<String> {
    let domain = domain.trim_end_matches('.').to_ascii_lowercase();
    let is_label = |label: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(is_letter)
    };
    // The label of a job has at least 42 characters.
    if domain.len() > 180 || domain.parse::<std::net::IpAddr>().is_ok() || !domain.split('.').all(is_label) {
        bail!("job_domain: `{domain}` is not a name such as jobs.example.org");
    }
    if domain == "localhost" {
        bail!("job_domain: names below localhost are the jobs' already; leave it out");
    }
    let public = public_url.and_then(|url| url.split_once("://")).map(|(_, rest)| rest);
    let public = public.and_then(|rest| rest.split(['/', ':']).next()).map(str::to_ascii_lowercase);
    let own = http.allowed_hosts.iter().map(|host| host.to_ascii_lowercase());
    for host in public.into_iter().chain(own) {
        if host == domain || host.ends_with(&format!(".{domain}")) {
            bail!(
                "job_domain: `{host}` is this server itself; what jobs serve must have a name that the API does not have, \
                 such as jobs.example.org"
            );
        }
    }
    Ok(domain)
}

fn pick_listen(flags: &[SocketAddr], file: Option<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>> {
    let picked = named_listen(flags, file)?;
    let twice = |address: &&SocketAddr| picked.iter().filter(|other| other == address).count() > 1;
    // Port 0 is assigned dynamically, so it may be used twice.
    if let Some(address) = picked.iter().filter(|address| address.port() != 0).find(twice) {
        bail!("listen: {address} is named more than once");
    }
    Ok(picked)
}

fn named_listen(flags: &[SocketAddr], file: Option<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>> {
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

/// Without keys, anybody who reaches the server controls it, so it must not be reachable from outside by accident.
fn check_listen(listen: &[SocketAddr], insecure: bool, data: &Path) -> Result<()> {
    match listen.iter().find(|address| !address.ip().is_loopback()) {
        Some(address) if !insecure && !StoredKeys::are_in(data) => bail!(
            "listen: {address} can be reached by others, and this server asks nobody to log in: whoever reaches it \
             can run anything. Make a key first (`caisson keys add NAME --role admin --data {}`), use a loopback \
             address such as 127.0.0.1, or say --insecure-listen (insecure_listen = true) if something in front of it \
             lets only the right people through",
            data.display()
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
    let most = settings.max_connections;
    settings.max_connections_per_address = raw.max_connections_per_address.unwrap_or((most / 4).max(1));
    ensure!(settings.max_connections_per_address > 0, "http.max_connections_per_address: must be at least 1");
    settings.reserved_connections = raw.reserved_connections.unwrap_or(most / 16);
    ensure!(
        settings.reserved_connections < most,
        "http.reserved_connections: {} is not less than http.max_connections, {most}",
        settings.reserved_connections
    );
    let seconds = |value: Option<u64>, default| value.map_or(default, Duration::from_secs);
    settings.handshake_timeout = seconds(raw.handshake_timeout_s, settings.handshake_timeout);
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
    if let Some(first_uid) = raw.first_uid {
        // The highest id is reserved.
        let slots = raw.slots.unwrap_or(DEFAULT_SLOTS);
        let most = (u32::MAX - 1).saturating_sub(slots.saturating_mul(UIDS_PER_SANDBOX));
        ensure!(
            (1..=most).contains(&first_uid),
            "sandbox.first_uid: {first_uid} is not between 1 and {most}: {slots} sandboxes (sandbox.slots) have {UIDS_PER_SANDBOX} \
             ids each from there on"
        );
    }
    Ok(SandboxSettings {
        first_uid: raw.first_uid,
        slots: raw.slots,
        cgroup_parent: raw.cgroup_parent,
        ready_disks: raw.ready_disks,
        list_files: raw.list_files,
        disk_overcommit: raw.disk_overcommit.unwrap_or(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(file: &Path) -> HostArguments {
        HostArguments { config: Some(file.to_owned()), ..HostArguments::default() }
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
    fn no_job_is_shown_on_a_fixed_port_unless_that_is_asked_for() {
        assert_eq!(load("").unwrap().expose, RawExpose { novnc: None, jupyter: None, vnc: None });
        assert_eq!(load("[expose]\nvnc = 5900\n").unwrap().expose.vnc, Some(5900));
    }

    #[test]
    fn the_example_lists_every_setting_with_its_default() {
        let example = include_str!("../../../caisson.example.toml");
        let plain = Config::load(&HostArguments::default(), &[], false).unwrap();
        let uncommented: String = example
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| is_setting(rest)).unwrap_or(line))
            .map(|line| format!("{line}\n"))
            .collect();
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), "a key").unwrap();
        let key = key.path().to_string_lossy();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (chain, secret) =
            (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(chain.path(), made.cert.pem()).unwrap();
        std::fs::write(secret.path(), made.signing_key.serialize_pem()).unwrap();
        let uncommented = uncommented
            .replace("/etc/caisson/tls/chain.pem", &chain.path().to_string_lossy())
            .replace("/etc/caisson/tls/key.pem", &secret.path().to_string_lossy())
            .replace("/etc/caisson/oidc.secret", &secret.path().to_string_lossy());
        let uncommented =
            uncommented.replace("/etc/caisson/model.key", &key).replace("/etc/caisson/embeddings-key", &key);
        let shown = load(&uncommented).unwrap();
        assert_eq!(shown.listen, plain.listen);
        assert_eq!(shown.jobs.defaults.limits, plain.jobs.defaults.limits);
        assert_eq!(shown.jobs.max_queued, plain.jobs.max_queued);
        assert_eq!(shown.http.max_json_bytes, plain.http.max_json_bytes);
        assert_eq!(shown.jobs.retention_age, plain.jobs.retention_age);
        assert_eq!(shown.model.connect_timeout, plain.model.connect_timeout);
        assert_eq!(shown.model.retries, plain.model.retries);
    }

    #[test]
    fn ids_of_sandboxes_fit_below_the_last_of_all() {
        let read = |text: &str| load(&format!("[sandbox]\n{text}"));
        read("first_uid = 1").unwrap();
        read("first_uid = 4026531838").unwrap();
        read("first_uid = 4294901758\nslots = 1").unwrap();
        for wrong in ["first_uid = 4294967295", "first_uid = 0", "first_uid = 4026531839"] {
            let error = format!("{:#}", read(wrong).unwrap_err());
            assert!(
                error.contains("sandbox.first_uid") && error.contains("between 1 and 4026531838"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_address_is_listened_on_once() {
        let error = load(r#"listen = ["127.0.0.1:8105", "[::1]:8105", "127.0.0.1:8105"]"#).unwrap_err();
        assert!(format!("{error:#}").contains("listen: 127.0.0.1:8105 is named more than once"), "{error:#}");
        load(r#"listen = ["127.0.0.1:0", "127.0.0.1:0"]"#).unwrap();
    }

    #[test]
    fn the_domain_of_jobs_is_not_where_the_api_is() {
        let read = |text: &str| load(text).map(|config| config.http.job_domain);
        let public = "public_url = \"https://caisson.example.org:8443/x\"\n";
        let good = format!("{public}job_domain = \"Jobs.example.org.\"");
        assert_eq!(read(&good).unwrap().as_deref(), Some("jobs.example.org"));
        for domain in
            ["caisson.example.org", "example.org", "org", "localhost", "10.0.0.1", "a..b", "", "a/b"]
        {
            let error = read(&format!("{public}job_domain = \"{domain}\"")).unwrap_err().to_string();
            assert!(error.contains("job_domain"), "{domain}: {error}");
        }
        assert!(read("allowed_hosts = [\"a.jobs.test\"]\njob_domain = \"jobs.test\"").is_err());
    }

    #[test]
    fn an_unknown_key_is_refused_with_file_and_line() {
        let error = format!("{:#}", load("listen = [\"127.0.0.1:8000\"]\ncolour = 1\n").unwrap_err());
        assert!(error.contains("caisson.toml:2: colour: there is no such setting"), "{error}");
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let error = format!("{:#}", load("colour = 1\n[limits]\nmemory_mib = 1\ncpus = 0.0\n").unwrap_err());
        for told in
            ["caisson.toml:1: colour", "caisson.toml:3: limits.memory_mib", "caisson.toml:4: limits.cpus"]
        {
            assert!(error.contains(told), "{told}: {error}");
        }
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
            ("[http]\nmax_connections_per_address = 0", "http.max_connections_per_address"),
            ("[http]\nmax_connections = 8\nreserved_connections = 8", "http.reserved_connections"),
            ("[sandbox]\ncgroup_parent = \"a/b\"", "sandbox.cgroup_parent"),
            ("[docker]\nhost = \"/var/run/docker.sock\"", "docker.host"),
            ("[docker]\nimage = \"-v\"", "docker.image"),
            ("[docker]\nimages = { host = \"debian\" }", "docker.images"),
            ("[docker]\nruntime = \"\"", "docker.runtime"),
        ] {
            let error = format!("{:#}", load(text).unwrap_err());
            assert!(error.contains(key), "{text}: {error}");
        }
    }
}
