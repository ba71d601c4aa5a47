//! Sandboxes made of Linux namespaces on this host.
//!
//! Each sandbox has a directory (`<state_dir>/sandboxes/<id>`) and its own launcher process. The launcher creates the
//! namespaces, is the parent of the guest, and outlives the server. The backend keeps no state about sandboxes in
//! memory: it reads everything from the directory.

mod apparmor;
mod checks;
mod cleanup;
mod config;
mod connect;
mod create;
mod destroy;
mod disk_monitor;
mod file_audit;
mod freeze;
mod host_image;
mod images;
mod landlock_only;
mod launcher_process;
mod layout;
mod limits;
mod list;
mod named_image;
mod network_pool;
mod observe;
mod old_cgroups;
mod old_layers;
mod own_ca;
mod preflight;
mod probe;
mod seccomp;
mod standby;
mod users;

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use self::file_audit::FileListWarning;
use self::host_image::HostImages;
use self::layout::Layout;
use self::limits::HostLimits;
use self::named_image::{AgentUser, NamedImages};
use self::network_pool::{NetworkPool, REST};
use self::standby::Standby;
use self::users::Identity;
use crate::error::SandboxError;
use crate::host::background::Background;
use crate::host::disk::DiskPools;
use crate::locks::Locks;
use crate::spec::{BackendKind, Capabilities, Check, Observed, SandboxId, SandboxSpec};
use crate::{Admission, Backend, Cleanup, DiskMonitor, FileAudit, Freezer, GuestStream, Images};

pub use config::{DEFAULT_SLOTS, NamespaceConfig, UseNamespaces};
pub use launcher::launch_file::LAUNCH_FILE;
pub use launcher::spec::UIDS_PER_SANDBOX;
pub use launcher::spec::{FileAuditing, Trace};
pub use layout::check_run_folder;

/// Runs sandboxes made of Linux namespaces on this host. Clones share all state.
#[derive(Clone)]
pub struct NamespaceBackend {
    inner: Arc<Inner>,
    locks: Locks,
}

struct Inner {
    config: NamespaceConfig,
    layout: Layout,
    disks: DiskPools,
    standby: Standby,
    networks: NetworkPool,
    /// Held from the check for free disk space until the disk exists.
    making_disk: std::sync::Mutex<()>,
    /// Deletes the remains of destroyed sandboxes.
    trash: Background,
    host_images: HostImages,
    named_images: NamedImages,
    offer: HostLimits,
    /// The supported limits of sandboxes without namespaces.
    landlock_only_limits: HostLimits,
    identity: Identity,
    missing_file_lists: FileListWarning,
    /// Whether namespaces work on this host, once probed.
    namespaces: std::sync::OnceLock<Result<(), users::Obstacle>>,
}

impl NamespaceBackend {
    /// Creates the backend's directories and inspects the host.
    ///
    /// # Errors
    /// Fails if the directories cannot be created.
    pub fn new(config: NamespaceConfig) -> Result<Self, SandboxError> {
        let layout = Layout::new(&config.state_dir, &config.run_dir, &config.slots_dir);
        let backend = Self::with_layout(config, layout)?;
        backend.inner.disks.remove_leftovers();
        old_layers::trash_unused(&backend.inner.layout);
        old_cgroups::sweep(&backend.inner);
        cleanup::empty_trash(&backend.inner);
        Ok(backend)
    }

    /// A backend that only inspects the host: its experiments go to `scratch`, and the configured directories are
    /// neither created nor changed.
    ///
    /// # Errors
    /// Fails if the directories cannot be created.
    pub fn for_inspection(config: NamespaceConfig, scratch: &Path) -> Result<Self, SandboxError> {
        let layout = Layout::new(scratch, &scratch.join("run"), &scratch.join("slots"));
        Self::with_layout(config, layout)
    }

    fn with_layout(config: NamespaceConfig, layout: Layout) -> Result<Self, SandboxError> {
        layout.prepare()?;
        let identity = Identity::find(&config, &layout);
        let offer = HostLimits::find(&config, &identity);
        let inner = Arc::new(Inner {
            landlock_only_limits: offer.without_namespaces(&identity),
            disks: DiskPools::new(layout.disks(), config.ready_disks),
            standby: Standby::new(config.launcher.clone()),
            networks: NetworkPool::new(REST),
            making_disk: std::sync::Mutex::default(),
            trash: Background::new("trash"),
            host_images: HostImages::new(layout.images(), "/", identity.owners()),
            named_images: NamedImages::new(
                config.images_dir.clone(),
                layout.images(),
                AgentUser::of(&identity.users),
            ),
            offer,
            identity,
            missing_file_lists: FileListWarning::default(),
            namespaces: std::sync::OnceLock::new(),
            layout,
            config,
        });
        Ok(Self { inner, locks: Locks::new() })
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
impl Backend for NamespaceBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Namespace
    }

    async fn preflight(&self) -> Result<Capabilities, SandboxError> {
        self.blocking(preflight::preflight).await
    }

    async fn checks(&self) -> Vec<Check> {
        self.blocking(|inner| Ok(checks::checks(inner))).await.unwrap_or_default()
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError> {
        create::create(self, id, spec).await
    }

    async fn observe(&self, id: SandboxId) -> Result<Observed, SandboxError> {
        self.blocking(move |inner| observe::observe(inner, id)).await
    }

    async fn list(&self) -> Result<Vec<SandboxId>, SandboxError> {
        self.blocking(list::list).await
    }

    async fn connect(&self, id: SandboxId) -> Result<GuestStream, SandboxError> {
        connect::connect(&self.inner, id).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), SandboxError> {
        destroy::destroy(self, id).await
    }

    fn freezer(&self) -> Option<&dyn Freezer> {
        self.inner.offer.hierarchy.as_ref().map(|_| self as &dyn Freezer)
    }

    fn images(&self) -> Option<&dyn Images> {
        Some(self)
    }

    fn file_audit(&self) -> Option<&dyn FileAudit> {
        Some(self)
    }

    fn disk_monitor(&self) -> Option<&dyn DiskMonitor> {
        Some(self)
    }

    fn admission(&self) -> Option<&dyn Admission> {
        Some(self)
    }

    fn cleanup(&self) -> Option<&dyn Cleanup> {
        Some(self)
    }
}
