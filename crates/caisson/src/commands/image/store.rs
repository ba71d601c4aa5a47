//! The image store that the image commands work on.

use anyhow::Result;
use image::ImageStore;

use crate::arguments::HostArguments;
use crate::config::Config;

/// The configured image store.
pub(super) fn store(host: &HostArguments) -> Result<ImageStore> {
    let config = Config::load(host, &[], false)?;
    // Sandboxes run as their own users, which must be able to read the image. The folder itself denies access to
    // others.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(ImageStore::new(config.images))
}
