//! Ctrl-C while a job is watched: cancel it, leave it, or go on.

use std::io::{BufRead, Write};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::run::Place;
use super::view::{CLEAR, Question};
use crate::terminal;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    GoOn,
    Cancel,
    Leave,
}

/// What was asked so far.
pub(crate) struct Asked {
    way: Way,
    count: u32,
    /// The answer of the person in front, once there is one.
    answer: Option<oneshot::Receiver<Answer>>,
    question: Question,
}

/// What Ctrl-C means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A person is asked.
    Ask,
    /// Nobody can be asked: the job is left running.
    Leave,
    /// The job cannot go on without this process.
    Cancel,
}

impl Asked {
    /// For a job that goes on without us.
    pub(crate) fn on_a_server(question: Question) -> Self {
        let way = if terminal::is_interactive() { Way::Ask } else { Way::Leave };
        Self { way, count: 0, answer: None, question }
    }

    /// For a job that ends with us.
    pub(crate) fn in_this_process(question: Question) -> Self {
        Self { way: Way::Cancel, count: 0, answer: None, question }
    }
}

/// Waits for Ctrl-C, and for the answer where somebody is asked. May be dropped and called again.
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

/// Returns at Ctrl-C. Where the job would be lost with this process, also at SIGTERM and SIGHUP.
async fn told_to_stop(way: Way) {
    // Listening alone would already keep the other signals from ending the process.
    if way == Way::Cancel { told_to_end().await } else { interrupted().await }
}

/// Returns at what ends the wait for a job at this place.
pub(super) async fn told_to_stop_at(place: Place) {
    told_to_stop(if place == Place::Here { Way::Cancel } else { Way::Leave }).await;
}

/// Returns at Ctrl-C.
pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns at Ctrl-C, SIGTERM and SIGHUP, which is what a terminal that is closed sends: the signals that end a process
/// which does not listen.
pub(crate) async fn told_to_end() {
    tokio::select! {
        () = interrupted() => {}
        _ = told_to_go() => {}
    }
}

/// Returns at SIGTERM and SIGHUP, with the number of the signal.
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

/// The answer to the so-manieth Ctrl-C; nothing when a person is to be asked.
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

/// What a person is asked. It is written again below each line that comes meanwhile.
pub(super) const QUESTION: &str =
    "cancel the job, or leave it running? [c]ancel, [l]eave, Enter to go on watching: ";

/// Asks on a thread of its own, which ends with the process: a read cannot be called off.
fn ask() -> oneshot::Receiver<Answer> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut error = std::io::stderr().lock();
        let _ = write!(error, "{CLEAR}{QUESTION}").and_then(|()| error.flush());
        drop(error);
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        // Whoever has gone needs no answer.
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
