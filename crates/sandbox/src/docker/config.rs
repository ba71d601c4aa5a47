//! Settings of the Docker backend.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How the server reaches the guest in a container. No way needs a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// By a socket where the engine and the server see the same files, else through the engine's exec.
    #[default]
    Auto,
    /// By a socket in a directory that the container and the server share.
    Socket,
    /// By a relay that the engine runs in the container.
    Exec,
}

/// Whether images that the engine does not have are fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pull {
    /// Never: a missing image is an error.
    #[default]
    Never,
    /// When they are missing.
    Missing,
}

/// Settings of the Docker backend.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// Directory of what must outlive the server: disks, sockets, this server's name.
    pub state_dir: PathBuf,
    /// The guest's program.
    pub guest: PathBuf,
    /// Where the engine listens: `unix:///path` or `tcp://host:port`.
    pub host: String,
    /// The image of sandboxes that ask for `default`.
    pub default_image: String,
    /// Names that stand for other references.
    pub images: BTreeMap<String, String>,
    /// The engine's runtime, such as `runsc`; the engine's own default without one.
    pub runtime: Option<String>,
    /// How the guest is reached.
    pub link: LinkChoice,
    /// Whether missing images are fetched.
    pub pull: Pull,
    /// Port on the sandbox's loopback where outgoing connections enter.
    pub egress_port: u16,
    /// How many empty disks of each size are kept ready at most; more are made when half of them are gone.
    pub ready_disks: usize,
    /// How long the engine may take to answer.
    pub engine_timeout: Duration,
    /// How long a start may take.
    pub start_timeout: Duration,
    /// How long an end may take.
    pub stop_timeout: Duration,
}

impl DockerConfig {
    /// Where the engine listens when nobody says otherwise.
    pub const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";
    /// The image when nobody says otherwise.
    pub const DEFAULT_IMAGE: &str = "caisson/agent";

    /// Settings with defaults.
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
