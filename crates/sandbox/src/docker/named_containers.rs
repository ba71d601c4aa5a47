//! Creating and removing containers by names that only this server uses.

use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder};

use super::config::DockerConfig;
use super::engine::{self, CONFLICT, NOT_FOUND};

const TICK: Duration = Duration::from_millis(5);

/// Creates a container, replacing one that an earlier server was creating when it ended. The engine finishes such a
/// request, and for a while only the name is taken: there is no container yet that could be found or removed.
pub(super) async fn create(
    config: &DockerConfig,
    client: &Docker,
    name: &str,
    body: &ContainerCreateBody,
) -> Result<(), Error> {
    let end = Instant::now() + config.start_timeout;
    loop {
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        match client.create_container(Some(options), body.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) if engine::status(&error) == Some(CONFLICT) && Instant::now() < end => {
                remove(config, client, name).await?;
                tokio::time::sleep(TICK).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Kills and removes a container with its volumes. Succeeds if there is none.
pub(super) async fn remove(config: &DockerConfig, client: &Docker, name: &str) -> Result<(), Error> {
    let end = Instant::now() + config.stop_timeout;
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    loop {
        match client.remove_container(name, Some(options.clone())).await {
            Ok(()) => return Ok(()),
            Err(error) if engine::status(&error) == Some(NOT_FOUND) => return Ok(()),
            // Another request is already removing it.
            Err(error) if engine::status(&error) == Some(CONFLICT) && Instant::now() < end => {
                tokio::time::sleep(TICK).await;
            }
            Err(error) => return Err(error),
        }
    }
}
