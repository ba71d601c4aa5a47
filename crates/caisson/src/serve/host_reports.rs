//! The server's reports on its host, equal to `caisson doctor --json` and `caisson image list --json`; and the job of
//! `caisson demo`.

use std::sync::Arc;

use sandbox::Backend;
use server::HostReports;

use crate::config::Config;
use crate::demo::Recording;
use crate::host::{images, inspection};

/// Reports that are recomputed for each request.
pub(crate) fn reports(config: &Config, backend: &Arc<dyn Backend>) -> HostReports {
    let (of_doctor, of_images) = (config.clone(), config.clone());
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
