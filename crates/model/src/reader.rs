//! What the readers of the dialects have in common: events come in one by one, an answer grows.

use serde_json::Value;

use crate::answer::ModelEvent;
use crate::draft::Draft;
use crate::error::ModelError;
use crate::events::Emitter;
use crate::http::Events;

/// Reads the events of one answer.
pub(crate) trait Reader {
    /// What one event shows to who watches.
    type Shown: IntoIterator<Item = ModelEvent>;

    /// Takes the next event.
    fn read(&mut self, event: &Value) -> Result<Self::Shown, ModelError>;

    /// What came so far.
    fn draft(&self) -> &Draft;

    /// Whether an event has said that nothing more comes.
    fn is_over(&self) -> bool {
        false
    }

    /// Reads until the end and shows what comes.
    async fn read_all(&mut self, events: &mut Events, emitter: &Emitter) -> Result<(), ModelError> {
        while !self.is_over()
            && let Some(event) = events.next(self.draft().usage).await?
        {
            for shown in self.read(&event)? {
                emitter.emit(shown).await;
            }
        }
        Ok(())
    }

    /// The reader after these events, for the fuzz targets.
    #[cfg(feature = "fuzzing")]
    fn after(mut self, values: &[Value]) -> Option<Self>
    where
        Self: Sized,
    {
        for value in values {
            drop(self.read(value).ok()?);
        }
        Some(self)
    }
}
