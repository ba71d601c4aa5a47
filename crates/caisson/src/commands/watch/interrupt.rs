//! Ctrl-C while a job is watched: cancel it, detach from it, or go on.

use std::io::{BufRead, Write};

use tokio::sync::oneshot;

use super::location::JobLocation;
use super::prompt::{PROMPT, PromptFlag};
use crate::output::terminal::{self, CLEAR_LINE};
use crate::signals::{interrupted, termination_or_interrupt};

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
        Self { action, count: 0, answer: None, question }
    }

    /// For a job that runs in this process.
    pub(crate) fn in_this_process(question: PromptFlag) -> Self {
        Self { action: InterruptAction::Cancel, count: 0, answer: None, question }
    }
}

/// Waits for Ctrl-C, and for the answer if the user is being asked. Cancel safe.
pub(crate) async fn next(handler: &mut InterruptHandler) -> Choice {
    tokio::select! {
        () = stop_signal(handler.action) => {
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

/// Returns on Ctrl-C. If the job would be lost with this process, also on SIGTERM and SIGHUP.
async fn stop_signal(action: InterruptAction) {
    // Only listen for the signals that are needed: a signal with a listener no longer ends the process.
    if action == InterruptAction::Cancel { termination_or_interrupt().await } else { interrupted().await }
}

/// Returns on the signals that end watching a job running at `location`.
pub(super) async fn stop_signal_at(location: JobLocation) {
    stop_signal(if location == JobLocation::ThisProcess {
        InterruptAction::Cancel
    } else {
        InterruptAction::Detach
    })
    .await;
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
