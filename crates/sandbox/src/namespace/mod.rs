//! Sandboxes made of Linux namespaces on this host.
//!
//! Each sandbox has a directory (`<state_dir>/sandboxes/<id>`) and a process of its own, the launcher, which makes the
//! namespaces, is the parent of the guest, and outlives the server. Whatever is known of a sandbox is read from there:
//! this backend remembers nothing.

mod config;
mod create;
mod destroy;
mod disk;
mod freeze;
mod host_image;
mod layout;
mod limits;
mod observe;
mod owner;
mod preflight;
mod probe;
mod seccomp;
mod users;

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use self::disk::DiskStore;
use self::host_image::HostImages;
use self::layout::{Layout, failed};
use self::limits::Offer;
use self::users::Identity;
use crate::error::SandboxError;
use crate::spec::{BackendKind, Capabilities, Check, Observed, SandboxId, SandboxSpec};
use crate::{Backend, Freezer, GuestStream};

pub use config::NamespaceConfig;
pub use launcher::spec::Trace;

/// Calls for one sandbox come one after another; sandboxes share locks only by chance.
const LOCKS: usize = 256;

/// Makes sandboxes of Linux namespaces on this host.
pub struct NamespaceBackend {
    inner: Arc<Inner>,
    locks: Vec<Mutex<()>>,
}

struct Inner {
    config: NamespaceConfig,
    layout: Layout,
    disks: DiskStore,
    host_images: HostImages,
    offer: Offer,
    identity: Identity,
    /// Why namespaces cannot be used here, once that was tried.
    namespaces: std::sync::OnceLock<Result<(), users::Obstacle>>,
}

impl NamespaceBackend {
    /// A backend for this host. Makes its directories and looks at what the host offers.
    ///
    /// # Errors
    /// The directories cannot be made.
    pub fn new(config: NamespaceConfig) -> Result<Self, SandboxError> {
        let layout = Layout::new(&config.state_dir, &config.run_dir, &config.slots_dir);
        layout.prepare()?;
        let identity = Identity::find(&config, &layout);
        let inner = Arc::new(Inner {
            disks: DiskStore::new(layout.disks(), config.ready_disks),
            host_images: HostImages::new(layout.images(), "/", identity.owners()),
            offer: preflight::offer(&config, &identity),
            identity,
            namespaces: std::sync::OnceLock::new(),
            layout,
            config,
        });
        destroy::empty_trash(&inner);
        Ok(Self { inner, locks: (0..LOCKS).map(|_| Mutex::new(())).collect() })
    }

    /// Everything that was looked at on this host, for `doctor`. Unlike [`Backend::preflight`] it never fails.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        preflight::checks(&self.inner)
    }

    /// Deletes what destroyed sandboxes have left, and returns when it is gone. Without this it goes in the background.
    ///
    /// # Errors
    /// Something cannot be deleted.
    pub async fn empty_trash(&self) -> Result<(), SandboxError> {
        self.blocking(destroy::empty_trash_now).await
    }

    fn lock(&self, id: SandboxId) -> &Mutex<()> {
        let index = usize::try_from(id.as_u128() % LOCKS as u128).unwrap_or(0);
        &self.locks[index]
    }

    /// Does work that blocks away from the threads that serve.
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
impl Backend for NamespaceBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Namespace
    }

    async fn preflight(&self) -> Result<Capabilities, SandboxError> {
        self.blocking(preflight::preflight).await
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let _one_at_a_time = self.lock(id).lock().await;
        let wanted = spec.clone();
        let prepared = self.blocking(move |inner| create::prepare(inner, id, &wanted)).await?;
        let Some(prepared) = prepared else { return Ok(()) };
        let started = create::start(&self.inner, id, prepared).await;
        if started.is_err() {
            self.blocking(move |inner| destroy::destroy(inner, id)).await?;
        }
        started
    }

    async fn observe(&self, id: SandboxId) -> Result<Observed, SandboxError> {
        self.blocking(move |inner| observe::observe(inner, id)).await
    }

    async fn list(&self) -> Result<Vec<SandboxId>, SandboxError> {
        self.blocking(|inner| {
            let directory = inner.layout.sandboxes();
            let entries =
                std::fs::read_dir(&directory).map_err(|source| failed("listing", &directory, source))?;
            Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
        })
        .await
    }

    async fn connect(&self, id: SandboxId) -> Result<GuestStream, SandboxError> {
        let socket = self.inner.layout.socket(id)?;
        match UnixStream::connect(&socket).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Err(SandboxError::NotRunning { id, why: "nobody listens at its socket".into() })
            }
            Err(source) => Err(failed("connecting to", &socket, source)),
        }
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), SandboxError> {
        let _one_at_a_time = self.lock(id).lock().await;
        self.blocking(move |inner| destroy::destroy(inner, id)).await
    }

    fn freezer(&self) -> Option<&dyn Freezer> {
        self.inner.offer.hierarchy.as_ref().map(|_| self as &dyn Freezer)
    }
}
