//! Preparing an image, once per image, by means of the engine: a container that never runs receives the files and is
//! committed as an image. So any image and any remote engine work, and starting a sandbox copies nothing.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerConfig, ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CommitContainerOptionsBuilder, DownloadFromContainerOptionsBuilder, ListContainersOptionsBuilder,
    ListImagesOptionsBuilder, RemoveImageOptions, UploadToContainerOptionsBuilder,
};
use futures::StreamExt;

use super::engine::{self, NOT_FOUND};
use super::image::{HOME, Prepared};
use super::image_files::{self, Additions};
use super::layout::{self, GUEST_PROGRAM, SANDBOX_LABEL, SERVER_LABEL};
use super::{Inner, named_containers};
use crate::error::{SandboxError, failed};

/// Repository of the prepared images.
pub(super) const REPOSITORY: &str = "caisson-prepared";
/// Label on prepared images: the image they were made from.
const BASE_LABEL: &str = "caisson.base";
/// The maximum size of a file read from an image, in bytes.
const MAX_FILE_BYTES: usize = 16 << 20;
/// The maximum size of a home directory that is copied to every disk, in bytes.
const MAX_HOME_BYTES: usize = 64 << 20;
const MAX_LINKS: usize = 4;

/// An image to prepare.
pub(super) struct Preparation {
    pub(super) inner: Arc<Inner>,
    pub(super) client: Docker,
    /// The reference as requested.
    pub(super) reference: String,
    /// The engine's id of the image.
    pub(super) base: String,
    /// Certificates to add.
    pub(super) extra_ca: Vec<String>,
    /// Hash of all inputs.
    pub(super) key: String,
    pub(super) prepared: Prepared,
}

impl Preparation {
    /// Whether an earlier server has already prepared it.
    pub(super) async fn is_done(&self) -> bool {
        let is_there = self.client.inspect_image(&self.prepared.reference).await.is_ok();
        is_there && self.prepared.home.exists() && self.prepared.bundle.exists()
    }

    /// Prepares the image. The container's name is deterministic, so that the next attempt finds it if this server
    /// ends midway.
    pub(super) async fn make(&self) -> Result<(), SandboxError> {
        let Self { inner, client, reference, .. } = self;
        tracing::info!(reference, "preparing an image for sandboxes");
        let body = ContainerCreateBody {
            image: Some(self.base.clone()),
            entrypoint: Some(vec![GUEST_PROGRAM.to_owned()]),
            labels: Some(self.labels()),
            host_config: Some(HostConfig { network_mode: Some("none".into()), ..HostConfig::default() }),
            ..ContainerCreateBody::default()
        };
        let name = layout::image_container(&inner.layout.server, &self.key);
        named_containers::create(&inner.config, client, &name, &body)
            .await
            .map_err(|error| self.explain(error))?;
        let result = self.add_files_and_commit(&name).await;
        let removed = named_containers::remove(&inner.config, client, &name).await;
        result?;
        removed.map_err(|error| self.explain(error))?;
        remove_older(inner, client, reference, &self.key).await;
        Ok(())
    }

    /// Adds the files to the container and commits it as an image.
    async fn add_files_and_commit(&self, container: &str) -> Result<(), SandboxError> {
        let Self { inner, client, prepared, .. } = self;
        let explain = |error| self.explain(error);
        let additions = read(client, container, &self.extra_ca).await.map_err(explain)?;
        let guest =
            fs::read(&inner.config.guest).map_err(|source| failed("reading", &inner.config.guest, source))?;
        let archive = image_files::archive(&additions, &guest)
            .map_err(|source| SandboxError::Io { doing: "packing the guest".into(), source })?;
        let options = UploadToContainerOptionsBuilder::new().path("/").build();
        let upload = client.upload_to_container(container, Some(options), bollard::body_full(archive.into()));
        upload.await.map_err(explain)?;
        fs::write(&prepared.home, &additions.home)
            .map_err(|source| failed("writing", &prepared.home, source))?;
        fs::write(&prepared.bundle, &additions.trusted)
            .map_err(|source| failed("writing", &prepared.bundle, source))?;
        let options = CommitContainerOptionsBuilder::new()
            .container(container)
            .repo(REPOSITORY)
            .tag(&layout::image_tag(&inner.layout.server, &self.key))
            .comment("prepared for sandboxes by caisson")
            .pause(false)
            .build();
        let config = ContainerConfig { labels: Some(self.labels()), ..ContainerConfig::default() };
        client.commit_container(options, config).await.map_err(explain)?;
        Ok(())
    }

    fn labels(&self) -> HashMap<String, String> {
        HashMap::from([
            (BASE_LABEL.to_owned(), self.reference.clone()),
            (SERVER_LABEL.to_owned(), self.inner.layout.server.clone()),
        ])
    }

    fn explain(&self, error: Error) -> SandboxError {
        engine::explain(&self.inner.config, &format!("preparing the image {}", self.reference), error)
    }
}

/// Removes the containers of preparations that an earlier server left unfinished. Must not be called during a
/// preparation.
pub(super) async fn remove_unfinished(inner: &Inner, client: &Docker) -> Result<(), Error> {
    let options = ListContainersOptionsBuilder::new().all(true).filters(&inner.layout.filter()).build();
    for container in client.list_containers(Some(options)).await? {
        let is_sandbox = container.labels.is_some_and(|labels| labels.contains_key(SANDBOX_LABEL));
        if let (false, Some(id)) = (is_sandbox, container.id) {
            named_containers::remove(&inner.config, client, &id).await?;
        }
    }
    Ok(())
}

/// Removes older preparations of the same image. Images in use stay.
async fn remove_older(inner: &Inner, client: &Docker, reference: &str, key: &str) {
    let mut filter = inner.layout.filter();
    filter.entry("label".into()).or_default().push(format!("{BASE_LABEL}={reference}"));
    let options = ListImagesOptionsBuilder::new().filters(&filter).build();
    for image in client.list_images(Some(options)).await.unwrap_or_default() {
        for tag in image.repo_tags.iter().filter(|tag| !tag.ends_with(key)) {
            let _ = client.remove_image(tag, None::<RemoveImageOptions>, None).await;
        }
    }
}

/// Reads the image's files and computes the additions.
async fn read(client: &Docker, container: &str, extra_ca: &[String]) -> Result<Additions, Error> {
    let (_, users) = read_file(client, container, image_files::USERS).await?;
    let (_, groups) = read_file(client, container, image_files::GROUPS).await?;
    let (bundle_path, bundle) = read_file(client, container, image_files::BUNDLE).await?;
    let home = download(client, container, HOME, MAX_HOME_BYTES).await?.unwrap_or_default();
    let trusted = image_files::with_certificates(&bundle, extra_ca);
    Ok(Additions {
        trusted: trusted.clone(),
        users: image_files::with_agent(&users, image_files::USER_LINE),
        groups: image_files::with_agent(&groups, image_files::GROUP_LINE),
        bundle: (!extra_ca.is_empty()).then_some((bundle_path, trusted)),
        home,
    })
}

/// Reads a file of a container, following links; empty if it is missing. Also returns its resolved path.
async fn read_file(client: &Docker, container: &str, path: &str) -> Result<(String, String), Error> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Some(archive) = download(client, container, &path, MAX_FILE_BYTES).await? else { break };
        let mut archive = tar::Archive::new(archive.as_slice());
        let Some(entry) = archive.entries()?.next() else { break };
        let mut entry = entry?;
        if let Some(target) = entry.link_name()? {
            let above = Path::new(&path).parent().unwrap_or(Path::new("/"));
            path = image_files::clean(&above.join(target));
            continue;
        }
        let mut text = Vec::new();
        entry.read_to_end(&mut text)?;
        return Ok((path, String::from_utf8_lossy(&text).into_owned()));
    }
    Ok((path, String::new()))
}

/// Downloads a path of a container as a tar archive; `None` if it is missing or too large.
async fn download(
    client: &Docker,
    container: &str,
    path: &str,
    max_bytes: usize,
) -> Result<Option<Vec<u8>>, Error> {
    let options = DownloadFromContainerOptionsBuilder::new().path(path).build();
    let mut pieces = std::pin::pin!(client.download_from_container(container, Some(options)));
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        match piece {
            Ok(piece) if bytes.len() + piece.len() > max_bytes => {
                tracing::warn!(path, "file in the image is too large, using a minimal one");
                return Ok(None);
            }
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(error) if engine::status(&error) == Some(NOT_FOUND) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(bytes))
}
