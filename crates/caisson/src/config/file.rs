//! The schema of the configuration file. Unknown keys are rejected by name.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::addresses;
use super::agent::RawAgent;
use super::backend::RawBackend;
use super::context::RawContext;
use super::docker::RawDocker;
use super::egress::{RawEgress, RawSecret};
use super::environment::variable;
use super::expose::RawExpose;
use super::http::RawHttp;
use super::jobs::{RawDesktop, RawJobs, RawPool, RawRetention};
use super::limits::RawLimits;
use super::mcp::RawServers;
use super::model::RawModel;
use super::namespace::RawNamespace;
use super::oidc::RawOidc;
use super::sandbox::RawSandbox;
use super::tls::RawTls;
use crate::logging::LogFormat;

/// The default path of the configuration.
const DEFAULT_CONFIG: &str = "/etc/caisson/caisson.toml";

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawConfig {
    #[serde(deserialize_with = "addresses::read")]
    pub(crate) listen: Option<Vec<SocketAddr>>,
    pub(crate) insecure_listen: Option<bool>,
    pub(crate) allowed_hosts: Option<Vec<String>>,
    pub(crate) public_url: Option<String>,
    pub(crate) job_domain: Option<String>,
    pub(crate) data: Option<PathBuf>,
    pub(crate) run_dir: Option<PathBuf>,
    pub(crate) images: Option<PathBuf>,
    pub(crate) log: Option<String>,
    pub(crate) log_format: Option<LogFormat>,
    pub(crate) model: RawModel,
    pub(crate) jobs: RawJobs,
    pub(crate) pool: RawPool,
    pub(crate) limits: RawLimits,
    pub(crate) egress: RawEgress,
    pub(crate) secrets: BTreeMap<String, RawSecret>,
    pub(crate) desktop: RawDesktop,
    pub(crate) retention: RawRetention,
    pub(crate) http: RawHttp,
    pub(crate) telemetry: RawTelemetry,
    pub(crate) sandbox: RawSandbox,
    pub(crate) agent: RawAgent,
    pub(crate) context: RawContext,
    #[serde(deserialize_with = "addresses::read")]
    pub(crate) preview_listen: Option<Vec<SocketAddr>>,
    pub(crate) expose: RawExpose,
    pub(crate) backend: RawBackend,
    pub(crate) namespace: RawNamespace,
    pub(crate) docker: RawDocker,
    pub(crate) mcp: RawServers,
    pub(crate) tls: RawTls,
    pub(crate) oidc: RawOidc,
    pub(crate) trusted_proxies: Option<Vec<std::net::IpAddr>>,
}

/// Where to send traces.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTelemetry {
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) service_name: Option<String>,
}

/// Path of the configuration file: from the flag, the environment, or the default path if it exists.
pub(crate) fn path(flag: Option<&Path>) -> Option<PathBuf> {
    let named = flag.map(Path::to_owned).or_else(|| variable("CAISSON_CONFIG").map(PathBuf::from));
    named.or_else(|| Some(PathBuf::from(DEFAULT_CONFIG)).filter(|path| path.exists()))
}
