//! Sandboxes as containers of a Docker engine, driven through its API.
//!
//! Each sandbox is a container without network, capabilities and root, with the guest as its first process. The
//! backend keeps no state about sandboxes: it queries the engine by labels. If the engine sees the server's files, a
//! sandbox gets a sized disk from this server and a socket; otherwise it gets volumes of the engine and a relay.

mod checks;
mod cleanup;
mod config;
mod connect;
mod container;
mod create;
mod destroy;
mod disk;
mod engine;
mod freeze;
mod home;
mod image;
mod image_files;
mod images;
mod layout;
mod limits;
mod list;
mod locality;
mod named_containers;
mod observe;
mod own_ca;
mod preflight;
mod prepare;
mod seccomp;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bollard::Docker;
use rustix::process::{Resource, getrlimit};
use tokio::sync::{Mutex, OnceCell};

use self::layout::Layout;
use self::limits::HostLimits;
use self::locality::Locality;
use crate::error::{SandboxError, failed};
use crate::host::disk::{DiskPools, disk_obstacle};
use crate::host::limits::host_open_files_share;
use crate::locks::Locks;
use crate::spec::{BackendKind, Capabilities, Check, Observed, SandboxId, SandboxSpec};
use crate::{Admission, Backend, Cleanup, Engine, Freezer, GuestStream, Images};

pub use config::{DockerConfig, LinkChoice, Pull};

/// Open-file limit assumed for a remote engine, whose limits are unknown.
const ASSUMED_OPEN_FILES: u64 = 1 << 20;

/// Runs sandboxes as containers of a Docker engine. Clones share all state.
#[derive(Clone)]
pub struct DockerBackend {
    inner: Arc<Inner>,
    locks: Locks,
    ready: Arc<OnceCell<Ready>>,
}

struct Inner {
    config: DockerConfig,
    layout: Layout,
    disks: DiskPools,
    /// Keys of the images that are known to be prepared.
    images: Arc<Mutex<HashSet<String>>>,
}

/// Facts about the engine, known once it has answered.
struct Ready {
    client: Docker,
    locality: Locality,
    offer: HostLimits,
    guest_hash: u64,
}

impl DockerBackend {
    /// Creates a backend without contacting the engine, which may start later.
    ///
    /// # Errors
    /// Fails if the directories cannot be created.
    pub fn new(config: DockerConfig) -> Result<Self, SandboxError> {
        let layout = Layout::prepare(&config.state_dir)?;
        let backend = Self::with_layout(config, layout);
        backend.inner.disks.remove_leftovers();
        cleanup::empty_trash(&backend.inner);
        Ok(backend)
    }

    /// A backend that only inspects the engine: its experiments go to `scratch`, and the configured state directory
    /// is neither created nor changed.
    ///
    /// # Errors
    /// Fails if the directories cannot be created.
    pub fn for_inspection(config: DockerConfig, scratch: &Path) -> Result<Self, SandboxError> {
        Ok(Self::with_layout(config, Layout::prepare(scratch)?))
    }

    fn with_layout(config: DockerConfig, layout: Layout) -> Self {
        let inner = Arc::new(Inner {
            disks: DiskPools::new(layout.disks(), config.ready_disks),
            images: Arc::default(),
            layout,
            config,
        });
        Self { inner, locks: Locks::new(), ready: Arc::default() }
    }

    /// Connects to the engine once. If the engine does not answer, the next call tries again.
    async fn ready(&self) -> Result<&Ready, SandboxError> {
        self.ready.get_or_try_init(|| self.get_ready()).await
    }

    async fn get_ready(&self) -> Result<Ready, SandboxError> {
        let inner = &self.inner;
        let client = engine::open(&inner.config).await?;
        let info = client.info().await;
        let info =
            info.map_err(|error| engine::explain(&inner.config, "asking what the engine can do", error))?;
        if let Err(error) = prepare::remove_unfinished(inner, &client).await {
            tracing::warn!(error = %error, "cannot remove leftovers of an earlier server from the engine");
        }
        let locality = locality::find(&client, &info, &inner.config.host, &inner.layout).await;
        let offer = match &locality {
            Locality::Shared => {
                let open_files = getrlimit(Resource::Nofile).maximum.unwrap_or(ASSUMED_OPEN_FILES);
                let offer = HostLimits::of(&info, disk_obstacle(), open_files);
                HostLimits { host_open_files_share: host_open_files_share(), ..offer }
            }
            Locality::Remote(why) => HostLimits::of(&info, Some(why.clone()), ASSUMED_OPEN_FILES),
        };
        let guest = &inner.config.guest;
        let mut hasher = DefaultHasher::new();
        std::fs::read(guest).map_err(|source| failed("reading", guest, source))?.hash(&mut hasher);
        Ok(Ready { offer, client, locality, guest_hash: hasher.finish() })
    }

    /// Runs blocking work on a blocking thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, SandboxError> + Send + 'static,
    ) -> Result<T, SandboxError> {
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || work(&inner)).await.unwrap_or_else(|error| {
            Err(SandboxError::Io { doing: "working on a sandbox".into(), source: io::Error::other(error) })
        })
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Docker
    }

    async fn preflight(&self) -> Result<Capabilities, SandboxError> {
        preflight::preflight(self).await
    }

    async fn checks(&self) -> Vec<Check> {
        checks::checks(self).await
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError> {
        create::create(self, id, spec).await
    }

    async fn observe(&self, id: SandboxId) -> Result<Observed, SandboxError> {
        observe::observe(&self.inner, self.ready().await?, id).await
    }

    async fn list(&self) -> Result<Vec<SandboxId>, SandboxError> {
        list::list(&self.inner, self.ready().await?).await
    }

    async fn connect(&self, id: SandboxId) -> Result<GuestStream, SandboxError> {
        connect::connect(&self.inner, self.ready().await?, id).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), SandboxError> {
        destroy::destroy(self, id).await
    }

    fn freezer(&self) -> Option<&dyn Freezer> {
        Some(self)
    }

    fn images(&self) -> Option<&dyn Images> {
        Some(self)
    }

    fn engine(&self) -> Option<&dyn Engine> {
        Some(self)
    }

    fn admission(&self) -> Option<&dyn Admission> {
        Some(self)
    }

    fn cleanup(&self) -> Option<&dyn Cleanup> {
        Some(self)
    }
}
