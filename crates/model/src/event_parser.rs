//! What the response parsers of all APIs have in common: they consume events one by one and build an answer.

use serde_json::Value;

use crate::draft::Draft;
use crate::error::ModelError;
use crate::events::Emitter;
use crate::http::Events;
use crate::output::ModelEvent;

/// Parses the events of one answer.
pub(crate) trait Reader {
    /// The events that one API event produces for display.
    type Shown: IntoIterator<Item = ModelEvent>;

    /// Processes the next event.
    fn read(&mut self, event: &Value) -> Result<Self::Shown, ModelError>;

    /// The answer so far.
    fn draft(&self) -> &Draft;

    /// Whether the last event has arrived.
    fn is_complete(&self) -> bool {
        false
    }

    /// Reads until the end and emits the events for display.
    async fn read_all(&mut self, events: &mut Events, emitter: &Emitter) -> Result<(), ModelError> {
        while !self.is_complete()
            && let Some(event) = events.next(self.draft().usage).await?
        {
            for shown in self.read(&event)? {
                emitter.emit(shown).await;
            }
        }
        Ok(())
    }

    /// Processes these events, for the fuzz targets.
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
