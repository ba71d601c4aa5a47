//! The configuration file as it is written. Unknown keys are refused by name.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawConfig {
    pub(crate) listen: Option<Vec<SocketAddr>>,
    pub(crate) insecure_listen: Option<bool>,
    pub(crate) allowed_hosts: Option<Vec<String>>,
    pub(crate) public_url: Option<String>,
    pub(crate) data: Option<PathBuf>,
    pub(crate) run_dir: Option<PathBuf>,
    pub(crate) log: Option<String>,
    pub(crate) log_format: Option<LogFormat>,
    pub(crate) jobs: RawJobs,
    pub(crate) pool: RawPool,
    pub(crate) limits: RawLimits,
    pub(crate) egress: RawEgress,
    pub(crate) retention: RawRetention,
    pub(crate) http: RawHttp,
    pub(crate) sandbox: RawSandbox,
}

/// How log lines look.
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
    pub(crate) max_running: Option<usize>,
    pub(crate) max_queued: Option<usize>,
    pub(crate) max_sandboxes: Option<usize>,
    pub(crate) wall_clock_s: Option<u64>,
    pub(crate) step_timeout_s: Option<u64>,
    pub(crate) max_losses: Option<u32>,
    pub(crate) on_shutdown: Option<RawOnShutdown>,
    pub(crate) shutdown_patience_s: Option<u64>,
}

/// What becomes of running jobs when the server is told to stop.
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
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawLimits {
    pub(crate) memory_mib: Option<u64>,
    pub(crate) cpus: Option<f64>,
    pub(crate) pids: Option<u64>,
    pub(crate) open_files: Option<u64>,
    pub(crate) disk_mib: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawEgress {
    pub(crate) default: Option<egress::Mode>,
    pub(crate) extra_ca: Option<Vec<PathBuf>>,
    pub(crate) refuse_also: Option<Vec<egress::Cidr>>,
    pub(crate) allow_ranges: Option<Vec<egress::Cidr>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRetention {
    pub(crate) days: Option<u64>,
    pub(crate) max_gib: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawHttp {
    pub(crate) max_json_mib: Option<usize>,
    pub(crate) max_connections: Option<usize>,
    pub(crate) header_timeout_s: Option<u64>,
    pub(crate) request_timeout_s: Option<u64>,
    pub(crate) idle_timeout_s: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSandbox {
    pub(crate) first_uid: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) cgroup_parent: Option<String>,
    pub(crate) ready_disks: Option<usize>,
}
