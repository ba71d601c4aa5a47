//! The images that the engine has or may pull.

use async_trait::async_trait;
use bollard::query_parameters::ListImagesOptionsBuilder;

use super::config::Pull;
use super::image::{DEFAULT, reference};
use super::prepare::REPOSITORY;
use super::{DockerBackend, Inner, Ready, engine};
use crate::error::SandboxError;
use crate::spec::Image;
use crate::{HOST_IMAGE, Images};

#[async_trait]
impl Images for DockerBackend {
    async fn names(&self) -> Result<Vec<String>, SandboxError> {
        names(&self.inner, self.ready().await?).await
    }

    async fn may_have(&self, name: &str) -> Result<bool, SandboxError> {
        match reference(&self.inner, &Image::Named(name.to_owned())) {
            Ok(reference) if name != HOST_IMAGE => {
                is_available(&self.inner, self.ready().await?, &reference).await
            }
            _ => Ok(false),
        }
    }

    fn remedy(&self, name: &str) -> Option<String> {
        Some(remedy(name))
    }
}

/// The image names that jobs can use: the default, short names, and references of images that the engine has.
async fn names(inner: &Inner, ready: &Ready) -> Result<Vec<String>, SandboxError> {
    let images = ready.client.list_images(Some(ListImagesOptionsBuilder::new().build())).await;
    let images = images.map_err(|error| engine::explain(&inner.config, "listing images", error))?;
    let tags = images.into_iter().flat_map(|image| image.repo_tags);
    let others = tags
        .filter(|tag| !tag.starts_with(&format!("{REPOSITORY}:")) && !tag.starts_with('<'))
        .map(|tag| tag.strip_suffix(":latest").unwrap_or(&tag).to_owned());
    let others: Vec<String> = others.collect();
    let mut names = Vec::new();
    let own = inner.config.images.iter().map(|(name, reference)| (name.as_str(), reference));
    for (name, reference) in std::iter::once((DEFAULT, &inner.config.default_image)).chain(own) {
        let listed = reference.strip_suffix(":latest").unwrap_or(reference);
        if others.iter().any(|other| other == listed) || is_available(inner, ready, reference).await? {
            names.push(name.to_owned());
        }
    }
    names.extend(others);
    Ok(names)
}

/// Whether the engine has an image, or may pull it.
async fn is_available(inner: &Inner, ready: &Ready, reference: &str) -> Result<bool, SandboxError> {
    if inner.config.pull == Pull::Missing {
        return Ok(true);
    }
    match ready.client.inspect_image(reference).await {
        Ok(_) => Ok(true),
        // Includes names that the engine does not accept as a reference.
        Err(error) if engine::status(&error).is_some_and(|status| (400..500).contains(&status)) => Ok(false),
        Err(error) => {
            Err(engine::explain(&inner.config, &format!("looking for the image {reference}"), error))
        }
    }
}

/// What an operator can do about an image that the engine does not have.
fn remedy(name: &str) -> String {
    match name {
        DEFAULT => {
            "then put it into the Docker engine with `caisson image export default --tar - | docker import - \
                    caisson/agent`, or name another in [docker] image"
                .into()
        }
        _ => {
            "build, load or import it (docker build, docker load, docker import), or set [docker] pull = true"
                .into()
        }
    }
}
