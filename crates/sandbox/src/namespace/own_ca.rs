//! A certificate that only one sandbox trusts: an additional layer over its image.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use launcher::spec::Root;

use super::host_image::BUNDLE;
use super::named_image::BROWSER_POLICIES;
use super::{Inner, named_image};
use crate::error::{SandboxError, failed};
use crate::host::certificates::browser_policy;
use crate::host::java_store::{STORE, java_store};
use crate::spec::{Image, SandboxSpec};

/// The layer's directory in the directory of its sandbox.
const LAYER: &str = "trust";

/// Adds the sandbox's own certificate to its root, if it has one.
pub(super) fn add(
    inner: &Inner,
    spec: &SandboxSpec,
    root: Root,
    directory: &Path,
) -> Result<Root, SandboxError> {
    let Some(own) = &spec.own_ca else { return Ok(root) };
    let layer = directory.join(LAYER);
    let made = match &spec.image {
        Image::Named(_) => {
            let all: Vec<String> = spec.extra_ca.iter().chain([own]).cloned().collect();
            inner.named_images.build_layer(&root.lower, &layer, &all)
        }
        Image::Host | Image::Directory(_) => build(&root.lower, &layer, own),
    };
    made.map_err(|source| failed("writing certificates to", &layer, source))?;
    Ok(Root { over: Some(layer), ..root })
}

/// The CA bundle of a root with one more certificate.
pub(super) fn bundle_with(root: &Path, own: &str) -> String {
    let mut text = named_image::read_inside(root, BUNDLE).unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(own.trim_end());
    text.push('\n');
    text
}

fn build(root: &Path, layer: &Path, own: &str) -> io::Result<()> {
    let bundle = bundle_with(root, own);
    write(layer, STORE, &java_store(&bundle))?;
    write(layer, BUNDLE, bundle.as_bytes())?;
    write(layer, &format!("{BROWSER_POLICIES}/caisson-certificates.json"), browser_policy(own).as_bytes())
}

fn write(layer: &Path, path: &str, content: &[u8]) -> io::Result<()> {
    let mut folder = layer.to_path_buf();
    let parts: Vec<&str> = path.split('/').collect();
    for part in [""].iter().chain(&parts[..parts.len() - 1]) {
        folder = if part.is_empty() { folder } else { folder.join(part) };
        fs::create_dir_all(&folder)?;
        // The permissions of the upper layer's directory decide who may enter.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    }
    let file = layer.join(path);
    fs::write(&file, content)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644))
}
