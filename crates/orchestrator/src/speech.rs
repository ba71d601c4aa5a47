//! Streams model output to live viewers while it is generated. Nothing here is logged; the complete answer becomes an
//! event.
//!
//! A viewer compares the current snapshot with its own cursor. So a slow viewer loses nothing and delays nobody, and
//! a viewer that connects in the middle of an answer gets it from the beginning.

use model::ModelEvent;
use serde::Serialize;
use tokio::sync::watch;

use crate::ids::JobId;
use crate::orchestrator::Orchestrator;

/// Maximum number of bytes per answer that is kept for viewers.
const MOST_BYTES: usize = 512 * 1024;

/// The answer so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    turn: u64,
    /// Number of restarts within the turn; the text of an earlier attempt is void.
    attempt: u32,
    text: String,
    reasoning: String,
}

/// The model output of a job: the driver writes, viewers subscribe.
#[derive(Debug, Clone, Default)]
pub(crate) struct Speech {
    said: watch::Sender<Said>,
}

impl Speech {
    /// Applies an event of the model stream.
    pub(crate) fn hear(&self, turn: u64, event: &ModelEvent) {
        match event {
            ModelEvent::Text(text) => self.add(turn, |said| &mut said.text, text),
            ModelEvent::Reasoning(text) => self.add(turn, |said| &mut said.reasoning, text),
            ModelEvent::Restarted { .. } => self.said.send_modify(|said| {
                *said = Said { turn, attempt: said.attempt + 1, ..Said::default() };
            }),
            ModelEvent::ToolCall { .. } | ModelEvent::Lost { .. } => {}
            ModelEvent::Answer(_) => self.fall_silent(),
        }
    }

    /// Clears the snapshot once no answer is being generated.
    pub(crate) fn fall_silent(&self) {
        self.said.send_if_modified(|said| std::mem::take(said) != Said::default());
    }

    /// Subscribes to the snapshot.
    pub(crate) fn listen(&self) -> watch::Receiver<Said> {
        self.said.subscribe()
    }

    fn add(&self, turn: u64, part: impl Fn(&mut Said) -> &mut String, more: &str) {
        self.said.send_modify(|said| {
            if said.turn != turn {
                *said = Said { turn, ..Said::default() };
            }
            let text = part(said);
            if text.len() + more.len() <= MOST_BYTES {
                text.push_str(more);
            }
        });
    }
}

/// How much of an answer a viewer has received.
#[derive(Debug, Clone, Default)]
pub struct Heard {
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

impl Heard {
    /// What is new in the snapshot; `None` if nothing is.
    pub fn next(&mut self, said: &Said) -> Option<Delta> {
        let mut restarted = false;
        if (said.turn, said.attempt) != (self.turn, self.attempt) {
            restarted = said.turn == self.turn && self.text + self.reasoning > 0;
            *self = Self { turn: said.turn, attempt: said.attempt, ..Self::default() };
        }
        let delta = Delta {
            turn: said.turn,
            text: said.text.get(self.text..).unwrap_or_default().to_owned(),
            reasoning: said.reasoning.get(self.reasoning..).unwrap_or_default().to_owned(),
            restarted,
        };
        self.text = said.text.len();
        self.reasoning = said.reasoning.len();
        let is_news = !delta.text.is_empty() || !delta.reasoning.is_empty() || restarted;
        (is_news && said.turn > 0).then_some(delta)
    }
}

impl Orchestrator {
    /// Subscribes to the model output of a job; `None` if the job has no driver.
    #[must_use]
    pub fn listen(&self, job: JobId) -> Option<watch::Receiver<Said>> {
        self.core.live.get(job).map(|live| live.speech.listen())
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
    fn a_listener_hears_each_word_once_and_a_late_one_hears_all() {
        let speech = Speech::default();
        let ears = speech.listen();
        let mut heard = Heard::default();
        let mut next = || heard.next(&ears.borrow()).map(|delta| delta.text);
        assert_eq!(next(), None);
        speech.hear(1, &text("I will"));
        assert_eq!(next().as_deref(), Some("I will"));
        assert_eq!(next(), None);
        speech.hear(1, &text(" do"));
        speech.hear(1, &text(" it"));
        assert_eq!(next().as_deref(), Some(" do it"));
        assert_eq!(Heard::default().next(&ears.borrow()).unwrap().text, "I will do it");
        speech.fall_silent();
        assert_eq!(next(), None);
        speech.hear(2, &text("More"));
        assert_eq!(next().as_deref(), Some("More"));
    }

    #[test]
    fn an_answer_that_broke_off_is_void() {
        let speech = Speech::default();
        let ears = speech.listen();
        let mut heard = Heard::default();
        speech.hear(3, &text("Half an"));
        assert!(!heard.next(&ears.borrow()).unwrap().restarted);
        let restarted = ModelEvent::Restarted {
            model: model::ModelName::new("a/b"),
            reason: "cut".into(),
            wait: Duration::ZERO,
            attempt: 2,
        };
        speech.hear(3, &restarted);
        speech.hear(3, &text("Whole"));
        let delta = heard.next(&ears.borrow()).unwrap();
        assert_eq!((delta.restarted, delta.text.as_str(), delta.turn), (true, "Whole", 3));
    }
}
