//! The digests of a job's result files in its log, so that later changes to a file are detected.

use job::{EventBody, JobId, NewEvent};
use store::measure_file;

use crate::core::Core;
use crate::data_folder::result_files;

/// An event for each result file as it is now; none for a file that cannot be read.
pub(super) async fn pin_result_files(core: &Core, job: JobId) -> Vec<NewEvent> {
    let folder = core.folder.job(job);
    let measured = tokio::task::spawn_blocking(move || {
        let files =
            result_files::list(&folder).into_iter().filter(|file| result_files::is_pinned(&file.name));
        let measured = files.map(|file| measure_file(&folder, &file.name));
        measured.collect::<Vec<_>>()
    });
    let mut events = Vec::new();
    for stored in measured.await.unwrap_or_else(|error| vec![Err(std::io::Error::other(error))]) {
        match stored {
            Ok(stored) => events.push(EventBody::AuditFileStored(stored).into()),
            Err(error) => tracing::warn!(%job, %error, "a result file cannot be read"),
        }
    }
    events
}
