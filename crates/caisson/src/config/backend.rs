//! The choice of the backend, and the settings of the Docker backend.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use super::environment::variable;

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

/// The backends by the names used in flags and settings.
const KINDS: [(&str, BackendChoice); 2] =
    [("namespace", BackendChoice::Namespace), ("docker", BackendChoice::Docker)];

/// Where sandboxes are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackendChoice {
    /// Linux namespaces on this host.
    Namespace,
    /// Containers of a Docker engine.
    Docker,
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

/// The backend from the flag, the environment, the file, or the default.
pub(crate) fn choose(flag: Option<&str>, file: Option<RawBackendKind>) -> Result<BackendChoice> {
    let named = flag.map(|text| ("--backend", text.to_owned()));
    let named = named.or_else(|| Some(("CAISSON_BACKEND", variable("CAISSON_BACKEND")?)));
    if let Some((source, text)) = named {
        return match KINDS.iter().find(|(name, _)| *name == text) {
            Some((_, kind)) => Ok(*kind),
            None => bail!("{source}: `{text}` is not a backend; there are namespace and docker"),
        };
    }
    Ok(match file.unwrap_or_default() {
        RawBackendKind::Namespace => BackendChoice::Namespace,
        RawBackendKind::Docker => BackendChoice::Docker,
    })
}

/// Checks the `[docker]` section.
pub(crate) fn docker_settings(raw: RawDocker) -> Result<DockerSettings> {
    let host = variable("CAISSON_DOCKER_HOST").or(raw.host);
    if let Some(host) = &host {
        let good = ["unix:///", "tcp://", "http://"].iter().any(|start| host.starts_with(start));
        ensure!(
            good,
            "docker.host: `{host}` is neither unix:///path/to/socket nor tcp://host:port; for an engine that asks \
             for certificates, forward its socket (ssh -nNT -L /run/engine.sock:/var/run/docker.sock HOST)"
        );
    }
    let is_reference = |text: &str| {
        text.len() <= 256
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte))
            && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
    };
    if let Some(image) = raw.image.as_deref().filter(|image| !is_reference(image)) {
        bail!("docker.image: `{image}` is no reference of an image, such as caisson/agent or debian:trixie");
    }
    for (name, reference) in &raw.images {
        ensure!(
            !["host", "default"].contains(&name.as_str()) && !name.is_empty(),
            "docker.images: `{name}` cannot be given another meaning; the default is set by docker.image"
        );
        ensure!(is_reference(reference), "docker.images: `{reference}` is no reference of an image");
    }
    if let Some(runtime) = raw.runtime.as_deref().filter(|name| name.is_empty() || name.contains(' ')) {
        bail!("docker.runtime: `{runtime}` is no name of a runtime; leave it out for the engine's own");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_file_and_unknown_kinds_are_refused_with_what_there_is() {
        assert_eq!(choose(None, None).unwrap(), BackendChoice::Namespace);
        assert_eq!(choose(None, Some(RawBackendKind::Docker)).unwrap(), BackendChoice::Docker);
        let chosen = choose(Some("namespace"), Some(RawBackendKind::Docker)).unwrap();
        assert_eq!(chosen, BackendChoice::Namespace);
        let error = choose(Some("podman"), None).unwrap_err().to_string();
        assert!(error.contains("podman") && error.contains("docker"), "{error}");
    }
}
