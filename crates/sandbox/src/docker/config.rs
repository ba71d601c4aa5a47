//! Settings of the Docker backend.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How the server reaches the guest in a container. None of the options needs a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// A socket if the engine and the server see the same files, otherwise the engine's exec.
    #[default]
    Auto,
    /// A socket in a directory that the container and the server share.
    Socket,
    /// A relay that the engine runs in the container.
    Exec,
}

/// Whether to pull images that the engine does not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pull {
    /// Never pull: a missing image is an error.
    #[default]
    Never,
    /// Pull missing images.
    Missing,
}

#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// Directory of the data that must outlive the server: disks, sockets, this server's name.
    pub state_dir: PathBuf,
    /// Path of the guest program.
    pub guest: PathBuf,
    /// Address of the engine: `unix:///path` or `tcp://host:port`.
    pub host: String,
    /// The image of sandboxes that ask for `default`.
    pub default_image: String,
    /// Short names for image references.
    pub images: BTreeMap<String, String>,
    /// The engine's runtime, such as `runsc`; `None` for the engine's default.
    pub runtime: Option<String>,
    pub link: LinkChoice,
    pub pull: Pull,
    /// Port on the sandbox's loopback interface that accepts outgoing connections.
    pub egress_port: u16,
    /// The maximum number of empty disks of each size to keep ready. The pool is refilled when half of them are gone.
    pub ready_disks: usize,
    /// Timeout for an answer of the engine.
    pub engine_timeout: Duration,
    /// Timeout for starting a sandbox.
    pub start_timeout: Duration,
    /// Timeout for stopping a sandbox.
    pub stop_timeout: Duration,
}

impl DockerConfig {
    /// The default address of the engine.
    pub const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";
    pub const DEFAULT_IMAGE: &str = "caisson/agent";

    pub fn new(state_dir: impl Into<PathBuf>, guest: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            guest: guest.into(),
            host: Self::DEFAULT_HOST.into(),
            default_image: Self::DEFAULT_IMAGE.into(),
            images: BTreeMap::new(),
            runtime: None,
            link: LinkChoice::Auto,
            pull: Pull::Never,
            egress_port: 3128,
            ready_disks: 16,
            engine_timeout: Duration::from_secs(120),
            start_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(30),
        }
    }
}
