//! Ctrl-C while a job is watched: cancel it, detach from it, or go on.

use std::io::{BufRead, Write};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::run::Place;
use super::view::{CLEAR, Question};
use crate::terminal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    GoOn,
    Cancel,
    Leave,
}

/// The state of handling Ctrl-C.
pub(crate) struct Asked {
    way: Way,
    count: u32,
    /// The user's answer, while the question is open.
    answer: Option<oneshot::Receiver<Answer>>,
    question: Question,
}

/// What Ctrl-C does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Asks the user.
    Ask,
    /// No terminal to ask on: leaves the job running.
    Leave,
    /// The job cannot go on without this process.
    Cancel,
}

impl Asked {
    /// For a job that runs on a server and goes on without this process.
    pub(crate) fn on_a_server(question: Question) -> Self {
        let way = if terminal::is_interactive() { Way::Ask } else { Way::Leave };
        Self { way, count: 0, answer: None, question }
    }

    /// For a job that runs in this process.
    pub(crate) fn in_this_process(question: Question) -> Self {
        Self { way: Way::Cancel, count: 0, answer: None, question }
    }
}

/// Waits for Ctrl-C, and for the answer if the user is being asked. Cancel safe.
pub(crate) async fn next(asked: &mut Asked) -> Answer {
    tokio::select! {
        () = told_to_stop(asked.way) => {
            asked.count += 1;
            match after_interrupt(asked.way, asked.count) {
                Some(answer) => answer,
                None => {
                    asked.question.set(true);
                    asked.answer = Some(ask());
                    Answer::GoOn
                }
            }
        }
        answer = answered(&mut asked.answer) => {
            asked.answer = None;
            asked.question.set(false);
            asked.count = 0;
            answer
        }
    }
}

/// Returns on Ctrl-C. If the job would be lost with this process, also on SIGTERM and SIGHUP.
async fn told_to_stop(way: Way) {
    // Only listen for the signals that are needed: a signal with a listener no longer ends the process.
    if way == Way::Cancel { told_to_end().await } else { interrupted().await }
}

/// Returns on the signals that end watching a job running at `place`.
pub(super) async fn told_to_stop_at(place: Place) {
    told_to_stop(if place == Place::Here { Way::Cancel } else { Way::Leave }).await;
}

/// Returns on Ctrl-C.
pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns on Ctrl-C, SIGTERM and SIGHUP (sent when a terminal is closed): the signals that end a process without a
/// handler.
pub(crate) async fn told_to_end() {
    tokio::select! {
        () = interrupted() => {}
        _ = told_to_go() => {}
    }
}

/// Returns on SIGTERM and SIGHUP, with the signal's number.
pub(crate) async fn told_to_go() -> i32 {
    let (terminate, hangup) = (SignalKind::terminate(), SignalKind::hangup());
    let (Ok(mut first), Ok(mut second)) = (signal(terminate), signal(hangup)) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = first.recv() => terminate.as_raw_value(),
        _ = second.recv() => hangup.as_raw_value(),
    }
}

/// The answer implied by the count-th Ctrl-C; `None` if the user must be asked.
fn after_interrupt(way: Way, count: u32) -> Option<Answer> {
    match (way, count) {
        (_, 2..) | (Way::Leave, _) => Some(Answer::Leave),
        (Way::Cancel, _) => Some(Answer::Cancel),
        (Way::Ask, _) => None,
    }
}

async fn answered(answer: &mut Option<oneshot::Receiver<Answer>>) -> Answer {
    match answer {
        Some(answer) => answer.await.unwrap_or(Answer::Leave),
        None => std::future::pending().await,
    }
}

/// The question. It is printed again below each line that appears meanwhile.
pub(super) const QUESTION: &str =
    "cancel the job, or leave it running? [c]ancel, [l]eave, Enter to go on watching: ";

/// Reads the answer on a separate thread, which ends with the process, because a blocking read cannot be cancelled.
fn ask() -> oneshot::Receiver<Answer> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut error = std::io::stderr().lock();
        let _ = write!(error, "{CLEAR}{QUESTION}").and_then(|()| error.flush());
        drop(error);
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        // Sending fails only if the receiver is gone and nobody needs the answer.
        let _ = sender.send(if matches!(read, Ok(1..)) { understand(&line) } else { Answer::Leave });
    });
    receiver
}

fn understand(line: &str) -> Answer {
    match line.trim().chars().next().map(|first| first.to_ascii_lowercase()) {
        Some('c' | 'y') => Answer::Cancel,
        Some('l' | 'q') => Answer::Leave,
        _ => Answer::GoOn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_interrupt_leaves_at_once() {
        assert_eq!(after_interrupt(Way::Ask, 1), None);
        assert_eq!(after_interrupt(Way::Ask, 2), Some(Answer::Leave));
        assert_eq!(after_interrupt(Way::Cancel, 1), Some(Answer::Cancel));
        assert_eq!(after_interrupt(Way::Cancel, 2), Some(Answer::Leave));
        assert_eq!(after_interrupt(Way::Leave, 1), Some(Answer::Leave));
    }

    #[test]
    fn only_a_clear_answer_ends_anything() {
        assert_eq!(
            ["c\n", "Cancel", "l\n", "\n", "what"].map(understand),
            [Answer::Cancel, Answer::Cancel, Answer::Leave, Answer::GoOn, Answer::GoOn]
        );
    }
}
