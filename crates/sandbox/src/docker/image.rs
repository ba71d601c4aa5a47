//! Prepared images: the chosen image plus the guest, the agent's user, mount points and certificates.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bollard::Docker;
use bollard::models::ImageInspect;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures::StreamExt;

use super::config::Pull;
use super::engine::{self, NOT_FOUND};
use super::prepare::{Preparation, REPOSITORY};
use super::{Inner, Ready, layout};
use crate::error::SandboxError;
use crate::spec::Image;

/// The image name of jobs that do not specify an image.
pub(super) const DEFAULT: &str = "default";
/// Increase when the content added to an image changes.
const RECIPE: u32 = 3;
pub(super) const HOME: &str = "/home/agent";

/// A prepared image.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    /// The image reference for containers.
    pub(super) reference: String,
    /// The content of the agent's home directory, as a tar file on the server's disk.
    pub(super) home: PathBuf,
    /// The certificates that the image trusts, in a file on the server's disk.
    pub(super) bundle: PathBuf,
}

/// The engine's reference for an image.
pub(super) fn reference(inner: &Inner, image: &Image) -> Result<String, SandboxError> {
    let config = &inner.config;
    match image {
        Image::Named(name) if name == DEFAULT => Ok(config.default_image.clone()),
        Image::Named(name) => {
            let reference = config.images.get(name).unwrap_or(name);
            if is_reference(reference) {
                return Ok(reference.clone());
            }
            Err(SandboxError::NoImage(format!("`{reference}`: not a Docker image reference")))
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

/// Finds an image, prepares it if necessary, and returns what to create containers from. Dropping the future cancels
/// the search; a preparation that has started runs to completion.
pub(super) async fn get(
    inner: &Arc<Inner>,
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
        reference: format!("{REPOSITORY}:{}", layout::image_tag(&inner.layout.server, &key)),
        home: inner.layout.disks().join(format!("home-{key}.tar")),
        bundle: inner.layout.disks().join(format!("bundle-{key}.pem")),
    };
    let mut known = Arc::clone(&inner.images).lock_owned().await;
    if known.contains(&key) {
        return Ok(prepared);
    }
    let work = Preparation {
        inner: Arc::clone(inner),
        client: ready.client.clone(),
        reference,
        base: id,
        extra_ca: extra_ca.to_vec(),
        key: key.clone(),
        prepared: prepared.clone(),
    };
    let whole = async move {
        if !work.is_done().await {
            work.make().await?;
        }
        known.insert(key);
        Ok(prepared)
    };
    tokio::spawn(whole).await.unwrap_or_else(|error| {
        Err(SandboxError::Io { doing: "preparing an image".into(), source: io::Error::other(error) })
    })
}

/// Clears the cache of prepared images: one of them may have been removed.
pub(super) async fn clear_cache(inner: &Inner) {
    inner.images.lock().await.clear();
}

/// Looks an image up in the engine.
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
            if engine::is_unreachable(&error) {
                return engine::explain(&inner.config, &doing, error);
            }
            SandboxError::NoImage(format!("{reference}: cannot pull it: {}", engine::message(&error)))
        })?;
    }
    client.inspect_image(reference).await.map_err(|error| engine::explain(&inner.config, &doing, error))
}

/// Without a tag an engine would pull all tags.
fn default_tag(reference: &str) -> &'static str {
    let name = reference.rsplit('/').next().unwrap_or_default();
    if name.contains([':', '@']) { "" } else { "latest" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_references_are_recognized() {
        for good in ["caisson/agent", "debian:trixie-slim", "localhost:5000/a/b:c", "a@sha256:0123"] {
            assert!(is_reference(good), "{good}");
        }
        for bad in ["", "-v", "a b", "../x", "a\n", "$(x)"] {
            assert!(!is_reference(bad), "{bad}");
        }
        assert_eq!(["a/b", "a:1", "h:5000/a", "a@sha256:1"].map(default_tag), ["latest", "", "latest", ""]);
    }
}
