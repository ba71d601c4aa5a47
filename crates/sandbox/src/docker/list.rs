//! Finding every sandbox of this server again: by labels in the engine, by directory names on this host.

use std::collections::BTreeSet;
use std::fs;

use bollard::query_parameters::ListContainersOptionsBuilder;

use super::layout::SANDBOX_LABEL;
use super::{Inner, Ready, destroy, engine};
use crate::error::SandboxError;
use crate::spec::SandboxId;

/// Lists sandboxes in any phase, including the remains of ended ones.
pub(super) async fn list(inner: &Inner, ready: &Ready) -> Result<Vec<SandboxId>, SandboxError> {
    let options = ListContainersOptionsBuilder::new().all(true).filters(&inner.layout.filter()).build();
    let containers = ready.client.list_containers(Some(options)).await;
    let containers =
        containers.map_err(|error| engine::explain(&inner.config, "listing containers", error))?;
    let named = |labels: &std::collections::HashMap<String, String>| labels.get(SANDBOX_LABEL)?.parse().ok();
    let mut found: BTreeSet<SandboxId> =
        containers.iter().filter_map(|container| named(container.labels.as_ref()?)).collect();
    found.extend(destroy::volumes(inner, ready, None).await?.iter().filter_map(|volume| volume.sandbox));
    let entries = fs::read_dir(inner.layout.sandboxes()).into_iter().flatten().flatten();
    found.extend(entries.filter_map(|entry| entry.file_name().to_str()?.parse::<SandboxId>().ok()));
    Ok(found.into_iter().collect())
}
