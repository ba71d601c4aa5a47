//! Ctrl-C while a job is watched: cancel it, leave it, or go on.

use std::io::{BufRead, Write};

use tokio::sync::oneshot;

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
    question: Option<oneshot::Receiver<Answer>>,
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
    pub(crate) fn on_a_server() -> Self {
        let way = if terminal::is_interactive() { Way::Ask } else { Way::Leave };
        Self { way, count: 0, question: None }
    }

    /// For a job that ends with us.
    pub(crate) fn in_this_process() -> Self {
        Self { way: Way::Cancel, count: 0, question: None }
    }
}

/// Waits for Ctrl-C, and for the answer where somebody is asked. May be dropped and called again.
pub(crate) async fn next(asked: &mut Asked) -> Answer {
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => {
            asked.count += 1;
            match after_interrupt(asked.way, asked.count, interrupted.is_ok()) {
                Some(answer) => answer,
                None => {
                    asked.question = Some(ask());
                    Answer::GoOn
                }
            }
        }
        answer = answered(&mut asked.question) => {
            asked.question = None;
            asked.count = 0;
            answer
        }
    }
}

/// The answer to the so-manieth Ctrl-C; nothing when a person is to be asked.
fn after_interrupt(way: Way, count: u32, is_signal: bool) -> Option<Answer> {
    match (way, count) {
        _ if !is_signal => Some(Answer::Leave),
        (_, 2..) | (Way::Leave, _) => Some(Answer::Leave),
        (Way::Cancel, _) => Some(Answer::Cancel),
        (Way::Ask, _) => None,
    }
}

async fn answered(question: &mut Option<oneshot::Receiver<Answer>>) -> Answer {
    match question {
        Some(question) => question.await.unwrap_or(Answer::Leave),
        None => std::future::pending().await,
    }
}

/// Asks on a thread of its own, which ends with the process: a read cannot be called off.
fn ask() -> oneshot::Receiver<Answer> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        eprint!("\r\x1b[2Kcancel the job, or leave it running? [c]ancel, [l]eave, Enter to go on watching: ");
        let _ = std::io::stderr().flush();
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
        assert_eq!(after_interrupt(Way::Ask, 1, true), None);
        assert_eq!(after_interrupt(Way::Ask, 2, true), Some(Answer::Leave));
        assert_eq!(after_interrupt(Way::Cancel, 1, true), Some(Answer::Cancel));
        assert_eq!(after_interrupt(Way::Cancel, 2, true), Some(Answer::Leave));
        assert_eq!(after_interrupt(Way::Leave, 1, true), Some(Answer::Leave));
    }

    #[test]
    fn only_a_clear_answer_ends_anything() {
        assert_eq!(
            ["c\n", "Cancel", "l\n", "\n", "what"].map(understand),
            [Answer::Cancel, Answer::Cancel, Answer::Leave, Answer::GoOn, Answer::GoOn]
        );
    }
}
