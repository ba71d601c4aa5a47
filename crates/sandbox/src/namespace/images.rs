//! The images of this host: its own programs, and the named images in a folder.

use async_trait::async_trait;

use super::NamespaceBackend;
use crate::error::SandboxError;
use crate::spec::Image;
use crate::{HOST_IMAGE, Images};

#[async_trait]
impl Images for NamespaceBackend {
    async fn names(&self) -> Result<Vec<String>, SandboxError> {
        self.blocking(|inner| {
            let mut names = vec![HOST_IMAGE.to_owned()];
            names.extend(inner.named_images.names()?);
            Ok(names)
        })
        .await
    }

    fn version(&self, image: &Image) -> Option<String> {
        match image {
            Image::Named(name) => self.inner.named_images.version(name),
            Image::Host | Image::Directory(_) => None,
        }
    }
}
