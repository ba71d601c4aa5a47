//! The server's reports on its host, equal to `caisson doctor --json` and `caisson image list --json`; and the job of
//! `caisson demo`.

use std::sync::Arc;

use sandbox::Backend;
use server::HostReports;

use super::running_config::RunningConfig;
use crate::demo::Recording;
use crate::host::{images, inspection};

/// Reports that are recomputed for each request.
pub(crate) fn reports(running: &Arc<RunningConfig>, backend: &Arc<dyn Backend>) -> HostReports {
    let config = running.current();
    let (of_doctor, of_images) = (config.clone(), config);
    let running = Arc::clone(running);
    let backend = Arc::clone(backend);
    let recording = Arc::new(Recording::default());
    HostReports::new(
        Arc::new(move || {
            let (config, backend) = (of_doctor.clone(), Arc::clone(&backend));
            Box::pin(async move {
                inspection::report(&config, &*backend).await.map_err(|error| format!("{error:#}"))
            })
        }),
        Arc::new(move || {
            let running = Arc::clone(&running);
            Box::pin(async move {
                let described = tokio::task::spawn_blocking(move || running.describe()).await;
                described.map_err(|error| error.to_string())
            })
        }),
        Arc::new(move || {
            let config = of_images.clone();
            Box::pin(async move {
                let listed = tokio::task::spawn_blocking(move || images::listing(&config)).await;
                listed.map_err(|error| error.to_string())?.map_err(|error| format!("{error:#}"))
            })
        }),
        Arc::new(move || {
            let recording = Arc::clone(&recording);
            Box::pin(async move { recording.job().await.map_err(|error| format!("{error:#}")) })
        }),
    )
}
