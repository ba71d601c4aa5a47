//! The checked configuration: flags override the environment, which overrides the file, which overrides the defaults.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use orchestrator::Settings;
use sandbox::{BackendKind, Isolation};
use server::ServerSettings;

use super::default_paths::{self, DefaultPaths};
use super::docker::{self, DockerSettings};
use super::environment::variable;
use super::expose::{self, Expose};
use super::file::{self, RawConfig};
use super::jobs::{desktop_settings, job_settings, pool_images, pool_size};
use super::limits::HostTotals;
use super::namespace::{self, NamespaceSettings};
use super::sandbox::{RawIsolation, SandboxSettings};
use super::{agent, backend, egress, http, listen, mcp};
use crate::arguments::HostArguments;
use crate::logging::{self, LogFormat};
use crate::telemetry::Telemetry;

/// Checked settings.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The configuration file, if there is one.
    pub(crate) file: Option<PathBuf>,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) insecure_listen: bool,
    pub(crate) data: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) images: PathBuf,
    pub(crate) default_paths: DefaultPaths,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    /// The trace collector, if configured.
    pub(crate) telemetry: Option<Telemetry>,
    pub(crate) jobs: Settings,
    pub(crate) http: ServerSettings,
    pub(crate) sandbox: SandboxSettings,
    /// The second listener, for previews of what jobs serve.
    pub(crate) preview_listen: Vec<SocketAddr>,
    /// Ports that show the newest running job.
    pub(crate) expose: Expose,
    pub(crate) backend: BackendKind,
    pub(crate) namespace: NamespaceSettings,
    pub(crate) docker: DockerSettings,
    pub(crate) model: model::Settings,
}

impl Config {
    /// Checks the settings of a file, overridden by flags and environment.
    pub(crate) fn from_raw(
        raw: RawConfig,
        arguments: &HostArguments,
        listen_flags: &[SocketAddr],
        insecure_flag: bool,
    ) -> Result<Self> {
        let listen = listen::pick(listen_flags, raw.listen)?;
        let insecure_listen = insecure_flag || raw.insecure_listen.unwrap_or(false);
        let preview_listen = raw.preview_listen.unwrap_or_default();
        if let Some(address) = preview_listen.iter().find(|address| !address.ip().is_loopback()) {
            bail!("preview_listen: {address} is not a loopback address; use one such as 127.0.0.1:8001");
        }
        let default_paths = DefaultPaths::of(rustix::process::geteuid().as_raw(), variable)?;
        let data =
            default_paths::pick(arguments.data.as_deref(), "CAISSON_DATA", raw.data, &default_paths.data)?;
        let run_default = default_paths.run_dir_of(&data);
        let run_dir =
            default_paths::pick(arguments.run_dir.as_deref(), "CAISSON_RUN_DIR", raw.run_dir, &run_default)?;
        let images = default_paths::pick(None, "CAISSON_IMAGES", raw.images, &data.join("images"))?;
        let mut http = http::settings(&raw.http)?;
        http.allowed_hosts = raw.allowed_hosts.unwrap_or_default();
        // A server that others can reach has host names that it does not know. Keys or a reverse proxy keep strangers
        // out.
        let expose = expose::check(raw.expose)?;
        let is_reached = listen.iter().chain(&expose.addresses()).any(|address| !address.ip().is_loopback());
        if (insecure_listen || is_reached) && http.allowed_hosts.is_empty() {
            http.allowed_hosts = vec!["*".into()];
        }
        http.job_domain = raw
            .job_domain
            .map(|domain| http::job_domain(&domain, raw.public_url.as_deref(), &http))
            .transpose()?;
        http.public_url = raw.public_url;
        http.trusted_proxies = raw.trusted_proxies.unwrap_or_default();
        http.certificate = raw.tls.certificate()?;
        http.oidc = raw.oidc.settings()?;
        let log = variable("CAISSON_LOG").or(raw.log).unwrap_or_else(|| "info".into());
        logging::filter(&log)?;
        let mut jobs = job_settings(&raw.jobs, &raw.limits, &raw.egress, &raw.retention)?;
        egress::apply(&mut jobs, &raw.egress, raw.secrets)?;
        jobs.pool_size = pool_size(&raw.pool)?;
        jobs.pool_images = pool_images(raw.pool)?;
        jobs.defaults.desktop = desktop_settings(&raw.desktop)?;
        agent::apply(&mut jobs, raw.agent)?;
        jobs.context = raw.context.settings()?;
        jobs.defaults.mcp = mcp::servers(raw.mcp)?;
        let model = raw.model.settings(file::path(arguments.config.as_deref()).as_deref())?;
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
        let backend = backend::choose(arguments.backend.as_deref(), raw.backend.kind)?;
        let docker = docker::settings(raw.docker)?;
        let is_elsewhere = backend == BackendKind::Docker && !docker.is_on_this_host();
        let host = if is_elsewhere { HostTotals::default() } else { HostTotals::measure(&data) };
        jobs.ceilings = raw.limits.ceilings(jobs.defaults.limits, host)?;
        // The same defaults as for a job without limits, so that pooled sandboxes fit such jobs.
        jobs.defaults.limits = jobs.ceilings.of(None, None).bound(jobs.defaults.limits)?;
        let file = file::path(arguments.config.as_deref());
        Ok(Self {
            file: file.map(|path| std::path::absolute(&path).unwrap_or(path)),
            listen,
            insecure_listen,
            data,
            run_dir,
            images,
            default_paths,
            log,
            log_format: raw.log_format.unwrap_or_default(),
            telemetry: Telemetry::check(raw.telemetry.otlp_endpoint, raw.telemetry.service_name)?,
            jobs,
            http,
            sandbox: SandboxSettings { ready_disks: raw.sandbox.ready_disks },
            preview_listen,
            expose,
            backend,
            namespace: namespace::settings(raw.namespace)?,
            docker,
            model,
        })
    }

    /// Refuses to listen where other hosts can reach a server that asks nobody for a key.
    pub(crate) fn check_reach(&self) -> Result<()> {
        if self.insecure_listen || self.http.oidc.is_some() {
            return Ok(());
        }
        listen::check_reach("listen", &self.listen, &self.data)?;
        listen::check_reach("expose.listen", &self.expose.addresses(), &self.data)
    }
}
