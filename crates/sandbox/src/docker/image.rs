//! Images as containers need them: the chosen one with the guest, the agent's user, mount points and certificates added.
//!
//! Made once for each image, with the engine's own means: a container that never runs is given the files and kept as an
//! image. So any image works, an engine far away too, and a start copies nothing.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerConfig, ContainerCreateBody, HostConfig, ImageInspect};
use bollard::query_parameters::{
    CommitContainerOptionsBuilder, CreateContainerOptions, CreateImageOptionsBuilder,
    DownloadFromContainerOptionsBuilder, ListImagesOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveImageOptions, UploadToContainerOptionsBuilder,
};
use futures::StreamExt;

use super::config::Pull;
use super::engine::{self, NOT_FOUND};
use super::image_files::{self, Additions};
use super::layout::{GUEST_PROGRAM, SERVER_LABEL};
use super::{Inner, Ready};
use crate::error::SandboxError;
use crate::namespace::layout::failed;
use crate::spec::Image;

/// Where images are kept that were made here.
const REPOSITORY: &str = "caisson-prepared";
/// On those images: what they were made of.
const BASE_LABEL: &str = "caisson.base";
/// Changes with what is added to an image.
const RECIPE: u32 = 3;
/// The most bytes of a file that is read from an image.
const MAX_FILE_BYTES: usize = 16 << 20;
/// The most bytes of a home that is copied to every disk.
const MAX_HOME_BYTES: usize = 64 << 20;
pub(super) const HOME: &str = "/home/agent";
const MAX_LINKS: usize = 4;

/// An image that is ready.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    /// What containers are made of.
    pub(super) reference: String,
    /// The content of the agent's home, as a tar file on the server's disk.
    pub(super) home: PathBuf,
    /// The certificates that it trusts, in a file on the server's disk.
    pub(super) bundle: PathBuf,
}

/// The engine's reference for an image.
pub(super) fn reference(inner: &Inner, image: &Image) -> Result<String, SandboxError> {
    let config = &inner.config;
    match image {
        Image::Named(name) if name == "default" => Ok(config.default_image.clone()),
        Image::Named(name) => {
            let reference = config.images.get(name).unwrap_or(name);
            if is_reference(reference) {
                return Ok(reference.clone());
            }
            Err(SandboxError::NoImage(format!("`{reference}`: this is no reference of an image in Docker")))
        }
        Image::Host => Err(SandboxError::NoImage(
            "`host` in containers: they do not see the host's files. Use `default`, or the reference of an image \
             that the engine has"
                .into(),
        )),
        Image::Directory(path) => Err(SandboxError::NoImage(format!(
            "{} in containers: a directory must become an image first (tar -C {} -c . | docker import - NAME)",
            path.display(),
            path.display()
        ))),
    }
}

fn is_reference(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    (1..=256).contains(&text.len())
        && text.bytes().all(good)
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
}

/// Finds an image, makes it ready where it is not yet, and says what to make containers of.
pub(super) async fn get(
    inner: &Inner,
    ready: &Ready,
    image: &Image,
    extra_ca: &[String],
) -> Result<Prepared, SandboxError> {
    let reference = reference(inner, image)?;
    let base = find(inner, &ready.client, &reference).await?;
    let id = base.id.unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    (RECIPE, &id, extra_ca, ready.guest_hash).hash(&mut hasher);
    let key = format!("{:016x}", hasher.finish());
    let prepared = Prepared {
        reference: format!("{REPOSITORY}:{key}"),
        home: inner.layout.disks().join(format!("home-{key}.tar")),
        bundle: inner.layout.disks().join(format!("bundle-{key}.pem")),
    };
    let mut known = inner.images.lock().await;
    if known.contains(&key) {
        return Ok(prepared);
    }
    let is_there = ready.client.inspect_image(&prepared.reference).await.is_ok();
    if !is_there || !prepared.home.exists() || !prepared.bundle.exists() {
        make(inner, ready, &reference, &id, extra_ca, &key, &prepared).await?;
    }
    known.insert(key);
    Ok(prepared)
}

/// The names that jobs can use: the default, short names, and the references of images that the engine has.
pub(super) async fn names(inner: &Inner, ready: &Ready) -> Result<Vec<String>, SandboxError> {
    let images = ready.client.list_images(Some(ListImagesOptionsBuilder::new().build())).await;
    let images = images.map_err(|error| engine::explain(&inner.config, "listing images", error))?;
    let tags = images.into_iter().flat_map(|image| image.repo_tags);
    let others = tags
        .filter(|tag| !tag.starts_with(&format!("{REPOSITORY}:")) && !tag.starts_with('<'))
        .map(|tag| tag.strip_suffix(":latest").unwrap_or(&tag).to_owned());
    let mut names = vec!["default".to_owned()];
    names.extend(inner.config.images.keys().cloned().chain(others));
    Ok(names)
}

/// Forgets what is known: an image that was there may have been removed.
pub(super) async fn forget(inner: &Inner) {
    inner.images.lock().await.clear();
}

/// Whether the engine has an image.
pub(super) async fn find(
    inner: &Inner,
    client: &Docker,
    reference: &str,
) -> Result<ImageInspect, SandboxError> {
    let doing = format!("looking for the image {reference}");
    match client.inspect_image(reference).await {
        Ok(found) => return Ok(found),
        Err(error) if engine::status(&error) != Some(NOT_FOUND) => {
            return Err(engine::explain(&inner.config, &doing, error));
        }
        Err(_) => {}
    }
    if inner.config.pull == Pull::Never {
        return Err(SandboxError::NoImage(format!(
            "{reference} in the Docker engine; build, load or import it (image/Dockerfile, docker load, docker \
             import), or set [docker] pull = true"
        )));
    }
    let options = CreateImageOptionsBuilder::new().from_image(reference).tag(default_tag(reference)).build();
    let mut progress = client.create_image(Some(options), None, None);
    while let Some(step) = progress.next().await {
        step.map_err(|error| {
            SandboxError::NoImage(format!("{reference}: it cannot be fetched: {}", engine::message(&error)))
        })?;
    }
    client.inspect_image(reference).await.map_err(|error| engine::explain(&inner.config, &doing, error))
}

/// Without a tag an engine would fetch all there are.
fn default_tag(reference: &str) -> &'static str {
    let name = reference.rsplit('/').next().unwrap_or_default();
    if name.contains([':', '@']) { "" } else { "latest" }
}

async fn make(
    inner: &Inner,
    ready: &Ready,
    reference: &str,
    base: &str,
    extra_ca: &[String],
    key: &str,
    prepared: &Prepared,
) -> Result<(), SandboxError> {
    let client = &ready.client;
    let explain = |error| engine::explain(&inner.config, &format!("preparing the image {reference}"), error);
    tracing::info!(reference, "preparing an image for sandboxes, once");
    let labels = HashMap::from([
        (BASE_LABEL.to_owned(), reference.to_owned()),
        (SERVER_LABEL.to_owned(), inner.layout.server.clone()),
    ]);
    let body = ContainerCreateBody {
        image: Some(base.to_owned()),
        entrypoint: Some(vec![GUEST_PROGRAM.to_owned()]),
        labels: Some(labels.clone()),
        host_config: Some(HostConfig { network_mode: Some("none".into()), ..HostConfig::default() }),
        ..ContainerCreateBody::default()
    };
    let made = client.create_container(None::<CreateContainerOptions>, body).await.map_err(explain)?;
    let work = async {
        let additions = read(client, &made.id, extra_ca).await.map_err(explain)?;
        let guest =
            fs::read(&inner.config.guest).map_err(|source| failed("reading", &inner.config.guest, source))?;
        let archive = image_files::archive(&additions, &guest)
            .map_err(|source| SandboxError::Io { doing: "packing the guest".into(), source })?;
        let options = UploadToContainerOptionsBuilder::new().path("/").build();
        let upload = client.upload_to_container(&made.id, Some(options), bollard::body_full(archive.into()));
        upload.await.map_err(explain)?;
        fs::write(&prepared.home, &additions.home)
            .map_err(|source| failed("writing", &prepared.home, source))?;
        fs::write(&prepared.bundle, &additions.trusted)
            .map_err(|source| failed("writing", &prepared.bundle, source))?;
        let options = CommitContainerOptionsBuilder::new()
            .container(&made.id)
            .repo(REPOSITORY)
            .tag(key)
            .comment("made ready for sandboxes by caisson")
            .pause(false)
            .build();
        let config = ContainerConfig { labels: Some(labels), ..ContainerConfig::default() };
        client.commit_container(options, config).await.map_err(explain)?;
        Ok(())
    };
    let result = work.await;
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    let removed = client.remove_container(&made.id, Some(options)).await;
    if result.is_ok() {
        removed.map_err(explain)?;
        remove_older(inner, client, reference, key).await;
    }
    result
}

/// Removes what was made of the same image before. What is still in use stays.
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

/// Reads what is added to.
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

/// Reads a file of a container, following links; empty where it is missing. Gives the path that it really has.
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

/// A path of a container as a tar archive; `None` where it is missing or too large.
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
                tracing::warn!(path, "too large in the image to be taken over");
                return Ok(None);
            }
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(error) if engine::status(&error) == Some(NOT_FOUND) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_told_from_other_words() {
        for good in ["caisson/agent", "debian:trixie-slim", "localhost:5000/a/b:c", "a@sha256:0123"] {
            assert!(is_reference(good), "{good}");
        }
        for bad in ["", "-v", "a b", "../x", "a\n", "$(x)"] {
            assert!(!is_reference(bad), "{bad}");
        }
        assert_eq!(["a/b", "a:1", "h:5000/a", "a@sha256:1"].map(default_tag), ["latest", "", "latest", ""]);
    }
}
