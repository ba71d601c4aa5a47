//! Where the index of a job's history is stored, and which embeddings it uses.

use std::sync::Arc;

use agent::{OutputStore, Recall};
use async_trait::async_trait;
use job::JobId;
use model::Embeddings;
use store::Store;

use super::super::Driver;

/// In the job's folder; a cache that can be deleted.
const FOLDER: &str = "recall";
/// The config key that errors name.
const SETTING: &str = "context.embeddings";

impl Driver {
    /// The index of this job's history.
    pub(super) fn recall(&self) -> Recall {
        let folder = self.core.folder.job(self.recorder.job()).join(FOLDER);
        let settings = self.core.settings().context.embeddings.clone();
        let embeddings = settings.and_then(|settings| match Embeddings::new(&settings, SETTING) {
            Ok(embeddings) => Some(embeddings),
            Err(error) => {
                tracing::warn!(job = %self.recorder.job(), %error, "the history is found by words alone");
                None
            }
        });
        let texts = Outputs { store: Arc::clone(&self.core.store), job: self.recorder.job() };
        Recall::new(folder, embeddings, Some(Arc::new(texts)))
    }
}

/// Access to outputs of a job that are too large for its log.
struct Outputs {
    store: Arc<dyn Store>,
    job: JobId,
}

#[async_trait]
impl OutputStore for Outputs {
    async fn whole(&self, digest: &str) -> Result<Option<String>, String> {
        let bytes = self.store.blob(self.job, digest.to_owned()).await.map_err(|error| error.to_string())?;
        Ok(bytes.map(into_text))
    }
}

/// Decodes stored text; invalid UTF-8 is replaced.
pub(super) fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
