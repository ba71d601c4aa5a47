//! The section `[http]`, and the base domain for job previews.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;
use server::ServerSettings;

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

/// Checks the section.
pub(crate) fn settings(raw: &RawHttp) -> Result<ServerSettings> {
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

/// Checks the base domain for job previews: the API must not be served there.
pub(crate) fn job_domain(domain: &str, public_url: Option<&str>, http: &ServerSettings) -> Result<String> {
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
        bail!("job_domain: previews below localhost need no setting; omit it");
    }
    let public = public_url.and_then(|url| url.split_once("://")).map(|(_, rest)| rest);
    let public = public.and_then(|rest| rest.split(['/', ':']).next()).map(str::to_ascii_lowercase);
    let own = http.allowed_hosts.iter().map(|host| host.to_ascii_lowercase());
    for host in public.into_iter().chain(own) {
        if host == domain || host.ends_with(&format!(".{domain}")) {
            bail!(
                "job_domain: `{host}` is the name of this server; job previews need a different domain, such as \
                 jobs.example.org"
            );
        }
    }
    Ok(domain)
}
