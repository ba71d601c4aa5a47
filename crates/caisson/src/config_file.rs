//! The schema of the configuration file. Unknown keys are rejected by name.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use crate::addresses;
use crate::config_model::RawModel;

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
    pub(crate) limits: crate::config_limits::RawLimits,
    pub(crate) egress: RawEgress,
    pub(crate) secrets: BTreeMap<String, crate::config_egress::RawSecret>,
    pub(crate) desktop: RawDesktop,
    pub(crate) retention: RawRetention,
    pub(crate) http: RawHttp,
    pub(crate) telemetry: RawTelemetry,
    pub(crate) sandbox: RawSandbox,
    pub(crate) agent: crate::config_agent::RawAgent,
    pub(crate) context: crate::config_context::RawContext,
    #[serde(deserialize_with = "addresses::read")]
    pub(crate) preview_listen: Option<Vec<SocketAddr>>,
    pub(crate) expose: RawExpose,
    pub(crate) backend: RawBackend,
    pub(crate) docker: RawDocker,
    pub(crate) mcp: crate::config_mcp::RawServers,
    pub(crate) tls: crate::config_tls::RawTls,
    pub(crate) oidc: crate::config_oidc::RawOidc,
    pub(crate) trusted_proxies: Option<Vec<std::net::IpAddr>>,
}

/// Ports on loopback that forward to the newest running job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawExpose {
    pub(crate) novnc: Option<u16>,
    pub(crate) jupyter: Option<u16>,
    pub(crate) vnc: Option<u16>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

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
    pub(crate) shutdown_patience_s: Option<u64>,
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
pub(crate) struct RawEgress {
    pub(crate) default: Option<egress::Mode>,
    pub(crate) extra_ca: Option<Vec<PathBuf>>,
    pub(crate) refuse_also: Option<Vec<egress::Cidr>>,
    pub(crate) allow_ranges: Option<Vec<egress::Cidr>>,
    pub(crate) ceiling: Option<egress::Mode>,
    pub(crate) wait_s: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) connections: Option<u64>,
    pub(crate) bytes_per_second: Option<u64>,
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

/// Where to send traces.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTelemetry {
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) service_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawHttp {
    pub(crate) max_json_mib: Option<usize>,
    pub(crate) max_connections: Option<usize>,
    pub(crate) max_connections_per_address: Option<usize>,
    pub(crate) reserved_connections: Option<usize>,
    pub(crate) handshake_timeout_s: Option<u64>,
    pub(crate) header_timeout_s: Option<u64>,
    pub(crate) request_timeout_s: Option<u64>,
    pub(crate) idle_timeout_s: Option<u64>,
}

/// The minimum isolation for jobs that do not specify one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawIsolation {
    Landlock,
    Namespaces,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSandbox {
    pub(crate) first_uid: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) cgroup_parent: Option<String>,
    pub(crate) ready_disks: Option<usize>,
    pub(crate) list_files: Option<bool>,
    pub(crate) disk_reserve_mib: Option<u64>,
    pub(crate) disk_overcommit: Option<bool>,
    pub(crate) isolation: Option<RawIsolation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawBackend {
    pub(crate) kind: Option<RawBackendKind>,
}

/// Where sandboxes are created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawBackendKind {
    #[default]
    Namespace,
    Docker,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawDocker {
    pub(crate) host: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) images: BTreeMap<String, String>,
    pub(crate) pull: Option<bool>,
    pub(crate) runtime: Option<String>,
    pub(crate) link: Option<RawLink>,
}

/// How the server reaches guests in containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawLink {
    #[default]
    Auto,
    Socket,
    Exec,
}
