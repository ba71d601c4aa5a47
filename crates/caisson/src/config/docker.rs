//! The section `[docker]`: settings of the Docker backend.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use super::environment::variable;

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

/// Checked settings of the Docker backend; `None` means the backend's default.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DockerSettings {
    pub(crate) host: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) images: BTreeMap<String, String>,
    pub(crate) pull: bool,
    pub(crate) runtime: Option<String>,
    pub(crate) link: RawLink,
}

impl DockerSettings {
    /// Whether the engine is assumed to run on this host.
    pub(crate) fn is_on_this_host(&self) -> bool {
        self.host.as_deref().is_none_or(|host| host.starts_with("unix://"))
    }
}

/// Checks the section.
pub(crate) fn settings(raw: RawDocker) -> Result<DockerSettings> {
    let host = variable("CAISSON_DOCKER_HOST").or(raw.host);
    if let Some(host) = &host {
        let good = ["unix:///", "tcp://", "http://"].iter().any(|start| host.starts_with(start));
        ensure!(
            good,
            "docker.host: `{host}` is not valid; use unix:///path/to/socket or tcp://host:port. For an engine that requires \
             client certificates, forward its socket (ssh -nNT -L /run/engine.sock:/var/run/docker.sock HOST)"
        );
    }
    let is_reference = |text: &str| {
        text.len() <= 256
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte))
            && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
    };
    if let Some(image) = raw.image.as_deref().filter(|image| !is_reference(image)) {
        bail!("docker.image: `{image}` is not an image reference, such as caisson/agent or debian:trixie");
    }
    for (name, reference) in &raw.images {
        ensure!(
            !["host", "default"].contains(&name.as_str()) && !name.is_empty(),
            "docker.images: `{name}` is reserved; set the default image with docker.image"
        );
        ensure!(is_reference(reference), "docker.images: `{reference}` is not an image reference");
    }
    if let Some(runtime) = raw.runtime.as_deref().filter(|name| name.is_empty() || name.contains(' ')) {
        bail!("docker.runtime: `{runtime}` is not a runtime name; omit it to use the engine's default");
    }
    Ok(DockerSettings {
        host,
        image: raw.image,
        images: raw.images,
        pull: raw.pull.unwrap_or(false),
        runtime: raw.runtime,
        link: raw.link.unwrap_or_default(),
    })
}
