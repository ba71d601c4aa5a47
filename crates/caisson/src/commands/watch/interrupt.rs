//! Ctrl-C while a job is watched: cancel it, detach from it, or go on.

use std::io::{BufRead, Write};

use tokio::sync::oneshot;

use super::prompt::{PROMPT, PromptFlag};
use crate::output::terminal::{self, CLEAR_LINE};
use crate::signals::StopSignals;

/// What to do about the job after Ctrl-C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    Continue,
    Cancel,
    Detach,
}

/// The state of handling Ctrl-C.
pub(crate) struct InterruptHandler {
    action: InterruptAction,
    signals: StopSignals,
    count: u32,
    /// The user's answer, while the question is open.
    answer: Option<oneshot::Receiver<Choice>>,
    question: PromptFlag,
}

/// What Ctrl-C does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InterruptAction {
    /// Asks the user.
    Ask,
    /// No terminal to ask on: leaves the job running.
    Detach,
    /// The job cannot go on without this process.
    Cancel,
}

impl InterruptHandler {
    /// For a job that runs on a server and goes on without this process.
    pub(crate) fn on_a_server(question: PromptFlag) -> Self {
        let action = if terminal::is_interactive() { InterruptAction::Ask } else { InterruptAction::Detach };
        Self { action, signals: StopSignals::interrupt(), count: 0, answer: None, question }
    }

    /// For a job that runs in this process, and would be lost with it.
    pub(crate) fn in_this_process(question: PromptFlag) -> Self {
        let signals = StopSignals::termination_or_interrupt();
        Self { action: InterruptAction::Cancel, signals, count: 0, answer: None, question }
    }

    /// Returns on the signals that end the command.
    pub(super) async fn stop_signal(&mut self) {
        self.signals.recv().await;
    }
}

/// Waits for Ctrl-C, and for the answer if the user is being asked. Cancel safe.
pub(crate) async fn next(handler: &mut InterruptHandler) -> Choice {
    tokio::select! {
        () = handler.signals.recv() => {
            handler.count += 1;
            match after_interrupt(handler.action, handler.count) {
                Some(answer) => answer,
                None => {
                    handler.question.set(true);
                    handler.answer = Some(ask());
                    Choice::Continue
                }
            }
        }
        answer = answered(&mut handler.answer) => {
            handler.answer = None;
            handler.question.set(false);
            handler.count = 0;
            answer
        }
    }
}

/// The answer implied by the count-th Ctrl-C; `None` if the user must be asked.
fn after_interrupt(action: InterruptAction, count: u32) -> Option<Choice> {
    match (action, count) {
        (_, 2..) | (InterruptAction::Detach, _) => Some(Choice::Detach),
        (InterruptAction::Cancel, _) => Some(Choice::Cancel),
        (InterruptAction::Ask, _) => None,
    }
}

async fn answered(answer: &mut Option<oneshot::Receiver<Choice>>) -> Choice {
    match answer {
        Some(answer) => answer.await.unwrap_or(Choice::Detach),
        None => std::future::pending().await,
    }
}

/// Reads the answer on a separate thread, which ends with the process, because a blocking read cannot be cancelled.
fn ask() -> oneshot::Receiver<Choice> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut error = std::io::stderr().lock();
        let _ = write!(error, "{CLEAR_LINE}{PROMPT}").and_then(|()| error.flush());
        drop(error);
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        // Sending fails only if the receiver is gone and nobody needs the answer.
        let _ = sender.send(if matches!(read, Ok(1..)) { parse_answer(&line) } else { Choice::Detach });
    });
    receiver
}

fn parse_answer(line: &str) -> Choice {
    match line.trim().chars().next().map(|first| first.to_ascii_lowercase()) {
        Some('c' | 'y') => Choice::Cancel,
        Some('l' | 'q') => Choice::Detach,
        _ => Choice::Continue,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_interrupt_detaches_immediately() {
        assert_eq!(after_interrupt(InterruptAction::Ask, 1), None);
        assert_eq!(after_interrupt(InterruptAction::Ask, 2), Some(Choice::Detach));
        assert_eq!(after_interrupt(InterruptAction::Cancel, 1), Some(Choice::Cancel));
        assert_eq!(after_interrupt(InterruptAction::Cancel, 2), Some(Choice::Detach));
        assert_eq!(after_interrupt(InterruptAction::Detach, 1), Some(Choice::Detach));
    }

    #[test]
    fn only_a_clear_answer_ends_anything() {
        assert_eq!(
            ["c\n", "Cancel", "l\n", "\n", "what"].map(parse_answer),
            [Choice::Cancel, Choice::Cancel, Choice::Detach, Choice::Continue, Choice::Continue]
        );
    }
}
