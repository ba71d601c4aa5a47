//! Sandboxes made of Linux namespaces on this host.
//!
//! Each sandbox has a directory (`<state_dir>/sandboxes/<id>`) and its own launcher process. The launcher creates the
//! namespaces, is the parent of the guest, and outlives the server. The backend keeps no state about sandboxes in
//! memory: it reads everything from the directory.

mod config;
mod create;
pub(crate) mod destroy;
pub(crate) mod disk;
mod file_access_log;
mod freeze;
mod host_disk;
mod host_image;
mod landlock_only;
mod launcher_process;
pub(crate) mod layout;
mod limits;
mod named_image;
mod network_pool;
mod observe;
mod old_cgroups;
mod old_layers;
pub(crate) mod own_ca;
pub(crate) mod preflight;
mod probe;
pub(crate) mod seccomp;
mod standby;
mod users;

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::net::UnixStream;

use self::create::PendingSandbox;
use self::disk::DiskPools;
use self::host_image::HostImages;
use self::layout::{Layout, failed};
use self::limits::HostLimits;
use self::named_image::{AgentUser, NamedImages};
use self::network_pool::{NetworkPool, REST};
use self::standby::Standby;
use self::users::Identity;
use crate::background::Background;
use crate::error::SandboxError;
use crate::locks::Locks;
use crate::spec::{
    BackendKind, Capabilities, Check, DiskState, HostDisk, Image, Isolation, LimitKind, Limits, Observed,
    SandboxId, SandboxSpec,
};
use crate::{Backend, Freezer, GuestStream, HOST_IMAGE};

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
        destroy::empty_trash(&backend.inner);
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
        let offer = preflight::offer(&config, &identity);
        let inner = Arc::new(Inner {
            landlock_only_limits: preflight::offer_without_namespaces(&offer, &identity),
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
        self.blocking(|inner| Ok(preflight::checks(inner))).await.unwrap_or_default()
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let turn = self.locks.turn(id).await;
        let (backend, wanted, asked) = (self.clone(), spec.clone(), spec.isolation);
        let made = async move {
            let ordered = backend.blocking(move |inner| create::start_launcher(inner, id, &wanted)).await?;
            let Some(PendingSandbox { network, answer }) = ordered else { return Ok(()) };
            let Err(error) = create::wait(&backend.inner, id, answer).await else { return Ok(()) };
            let clean_up_failed_start = move |inner: &Inner| {
                drop(network);
                Ok(create::clean_up_failed_start(inner, id, asked, error))
            };
            Err(backend.blocking(clean_up_failed_start).await?)
        };
        turn.run_to_completion(made).await
    }

    async fn observe(&self, id: SandboxId) -> Result<Observed, SandboxError> {
        self.blocking(move |inner| observe::observe(inner, id)).await
    }

    async fn unenforced(&self, id: SandboxId) -> Result<Vec<(LimitKind, String)>, SandboxError> {
        self.blocking(move |inner| observe::unenforced(inner, id)).await
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
        let turn = self.locks.turn(id).await;
        let backend = self.clone();
        turn.run_to_completion(
            async move { backend.blocking(move |inner| destroy::destroy(inner, id)).await },
        )
        .await
    }

    async fn images(&self) -> Result<Vec<String>, SandboxError> {
        self.blocking(|inner| {
            let mut names = vec![HOST_IMAGE.to_owned()];
            names.extend(inner.named_images.names()?);
            Ok(names)
        })
        .await
    }

    fn image_version(&self, image: &Image) -> Option<String> {
        match image {
            Image::Named(name) => self.inner.named_images.version(name),
            Image::Host | Image::Directory(_) => None,
        }
    }

    async fn check_limits(&self, limits: &Limits, isolation: Isolation) -> Result<(), SandboxError> {
        let limits = *limits;
        self.blocking(move |inner| create::check_limits(inner, &limits, isolation)).await
    }

    async fn settle(&self) -> Result<(), SandboxError> {
        self.blocking(destroy::empty_trash_now).await
    }

    fn file_list(&self, id: SandboxId) -> Option<std::path::PathBuf> {
        let list = self.inner.layout.sandbox(id).join(launcher::spec::FILES_FILE);
        list.exists().then_some(list)
    }

    async fn settle_file_list(&self, id: SandboxId) {
        // If the launcher does not answer, only the newest lines are missing.
        let _ = self.blocking(move |inner| file_access_log::settle(inner, id)).await;
    }

    async fn host_disk(&self) -> Result<Option<HostDisk>, SandboxError> {
        self.blocking(host_disk::measure).await.map(Some)
    }

    async fn sync_disk(&self, id: SandboxId) -> Result<DiskState, SandboxError> {
        self.blocking(move |inner| host_disk::sync(inner, id)).await
    }

    async fn disk_state(&self, id: SandboxId) -> Result<DiskState, SandboxError> {
        self.blocking(move |inner| host_disk::state(inner, id)).await
    }

    fn freezer(&self) -> Option<&dyn Freezer> {
        self.inner.offer.hierarchy.as_ref().map(|_| self as &dyn Freezer)
    }
}
