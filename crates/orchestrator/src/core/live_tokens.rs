//! Streams model output to live viewers while it is generated. Nothing here is logged; the complete answer becomes an
//! event.
//!
//! A viewer compares the current snapshot with its own cursor. So a slow viewer loses nothing and delays nobody, and
//! a viewer that connects in the middle of an answer gets it from the beginning.

use model::ModelEvent;
use serde::Serialize;
use tokio::sync::watch;

/// Maximum number of bytes per answer that is kept for viewers.
const MAX_BYTES: usize = 512 * 1024;

/// The answer so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    turn: u64,
    /// Number of restarts within the turn; the text of an earlier attempt is void.
    attempt: u32,
    text: String,
    reasoning: String,
}

/// The model output of a job: the driver writes, viewers subscribe.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveTokens {
    snapshot: watch::Sender<Snapshot>,
}

impl LiveTokens {
    /// Applies an event of the model stream.
    pub(crate) fn apply(&self, turn: u64, event: &ModelEvent) {
        match event {
            ModelEvent::Text(text) => self.add(turn, |snapshot| &mut snapshot.text, text),
            ModelEvent::Reasoning(text) => self.add(turn, |snapshot| &mut snapshot.reasoning, text),
            ModelEvent::Restarted { .. } => self.snapshot.send_modify(|snapshot| {
                *snapshot = Snapshot { turn, attempt: snapshot.attempt + 1, ..Snapshot::default() };
            }),
            ModelEvent::ToolCall { .. } | ModelEvent::Lost { .. } => {}
            ModelEvent::Answer(_) => self.clear_snapshot(),
        }
    }

    /// Clears the snapshot once no answer is being generated.
    pub(crate) fn clear_snapshot(&self) {
        self.snapshot.send_if_modified(|snapshot| std::mem::take(snapshot) != Snapshot::default());
    }

    /// Subscribes to the snapshot.
    pub(crate) fn listen(&self) -> watch::Receiver<Snapshot> {
        self.snapshot.subscribe()
    }

    fn add(&self, turn: u64, part: impl Fn(&mut Snapshot) -> &mut String, more: &str) {
        self.snapshot.send_modify(|snapshot| {
            if snapshot.turn != turn {
                *snapshot = Snapshot { turn, ..Snapshot::default() };
            }
            let text = part(snapshot);
            if text.len() + more.len() <= MAX_BYTES {
                text.push_str(more);
            }
        });
    }
}

/// How much of an answer a viewer has received.
#[derive(Debug, Clone, Default)]
pub struct Cursor {
    turn: u64,
    attempt: u32,
    text: usize,
    reasoning: usize,
}

/// The next piece of output for a viewer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Delta {
    pub turn: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Text of this turn that was sent before is void: the answer broke off and the model is called again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restarted: bool,
}

impl Cursor {
    /// What is new in the snapshot; `None` if nothing is.
    pub fn next(&mut self, snapshot: &Snapshot) -> Option<Delta> {
        let mut restarted = false;
        if (snapshot.turn, snapshot.attempt) != (self.turn, self.attempt) {
            restarted = snapshot.turn == self.turn && self.text + self.reasoning > 0;
            *self = Self { turn: snapshot.turn, attempt: snapshot.attempt, ..Self::default() };
        }
        let delta = Delta {
            turn: snapshot.turn,
            text: snapshot.text.get(self.text..).unwrap_or_default().to_owned(),
            reasoning: snapshot.reasoning.get(self.reasoning..).unwrap_or_default().to_owned(),
            restarted,
        };
        self.text = snapshot.text.len();
        self.reasoning = snapshot.reasoning.len();
        let is_news = !delta.text.is_empty() || !delta.reasoning.is_empty() || restarted;
        (is_news && snapshot.turn > 0).then_some(delta)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn text(words: &str) -> ModelEvent {
        ModelEvent::Text(words.into())
    }

    #[test]
    fn viewer_gets_each_token_once_and_a_late_viewer_gets_all() {
        let speech = LiveTokens::default();
        let receiver = speech.listen();
        let mut cursor = Cursor::default();
        let mut next = || cursor.next(&receiver.borrow()).map(|delta| delta.text);
        assert_eq!(next(), None);
        speech.apply(1, &text("I will"));
        assert_eq!(next().as_deref(), Some("I will"));
        assert_eq!(next(), None);
        speech.apply(1, &text(" do"));
        speech.apply(1, &text(" it"));
        assert_eq!(next().as_deref(), Some(" do it"));
        assert_eq!(Cursor::default().next(&receiver.borrow()).unwrap().text, "I will do it");
        speech.clear_snapshot();
        assert_eq!(next(), None);
        speech.apply(2, &text("More"));
        assert_eq!(next().as_deref(), Some("More"));
    }

    #[test]
    fn interrupted_answer_restarts_the_stream() {
        let speech = LiveTokens::default();
        let receiver = speech.listen();
        let mut cursor = Cursor::default();
        speech.apply(3, &text("Half an"));
        assert!(!cursor.next(&receiver.borrow()).unwrap().restarted);
        let restarted = ModelEvent::Restarted {
            model: model::ModelName::new("a/b"),
            reason: "cut".into(),
            wait: Duration::ZERO,
            attempt: 2,
        };
        speech.apply(3, &restarted);
        speech.apply(3, &text("Whole"));
        let delta = cursor.next(&receiver.borrow()).unwrap();
        assert_eq!((delta.restarted, delta.text.as_str(), delta.turn), (true, "Whole", 3));
    }
}
