//! Watches a job: shows its events, handles Ctrl-C, downloads its result.

mod interrupt;
mod location;
mod progress;
pub(crate) mod progress_agent;
mod prompt;
pub(crate) mod view;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use self::interrupt::{Choice, InterruptHandler};
use self::view::View;
use super::download;
use super::result_destination::ResultDestination;
use crate::client::Client;
use crate::coded_error::has_code;
use crate::output::{EXIT_CANCELLED, EXIT_DETACHED, exit_code_of, say};

pub(crate) use self::location::JobLocation;

/// Watches a job and downloads its result, unless the user stops watching.
pub(crate) async fn watch_to_end(
    client: &Client,
    location: JobLocation,
    id: &str,
    destination: Option<ResultDestination>,
    view: &mut View,
) -> Result<ExitCode> {
    let mut interrupts = match location {
        JobLocation::Server => InterruptHandler::on_a_server(view.question()),
        JobLocation::ThisProcess => InterruptHandler::in_this_process(view.question()),
    };
    let left = match watch(client, &mut interrupts, id, view).await? {
        WatchOutcome::Detached => {
            format!("job {id} keeps running: `caisson logs -f --events {id}`, `caisson cancel {id}`")
        }
        WatchOutcome::JobEnded => {
            tokio::select! {
                ended = finish(client, location, id, destination, view) => return ended,
                () = interrupts.stop_signal() => {}
            }
            format!("the result of job {id} was not downloaded: `caisson download {id}`")
        }
    };
    Ok(match location {
        JobLocation::Server => {
            say(&left);
            ExitCode::from(EXIT_DETACHED)
        }
        JobLocation::ThisProcess => {
            say(&format!("job {id} ended; nothing is kept"));
            ExitCode::from(EXIT_CANCELLED)
        }
    })
}

/// Why watching a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchOutcome {
    JobEnded,
    Detached,
}

/// Watches the job to its end, and handles Ctrl-C.
async fn watch(
    client: &Client,
    interrupts: &mut InterruptHandler,
    id: &str,
    view: &mut View,
) -> Result<WatchOutcome> {
    let path = format!("/v1/jobs/{id}/events");
    // The future is kept across signals, because watching again from the start would show everything again.
    let mut watching = std::pin::pin!(view.watch(client, &path));
    loop {
        tokio::select! {
            ended = watching.as_mut() => return ended.map(|()| WatchOutcome::JobEnded),
            answer = interrupt::next(interrupts) => match answer {
                Choice::Continue => {}
                Choice::Detach => return Ok(WatchOutcome::Detached),
                Choice::Cancel => {
                    say("cancelling; collecting the workspace");
                    let (path, nothing) = (format!("/v1/jobs/{id}/cancel"), json!({}));
                    let mut cancelling = std::pin::pin!(client.post(&path, &nothing));
                    loop {
                        tokio::select! {
                            // The job may have ended on its own in the meantime.
                            _ = cancelling.as_mut() => break,
                            again = interrupt::next(interrupts) => if again == Choice::Detach {
                                return Ok(WatchOutcome::Detached);
                            },
                        }
                    }
                }
            },
        }
    }
}

async fn finish(
    client: &Client,
    location: JobLocation,
    id: &str,
    destination: Option<ResultDestination>,
    view: &mut View,
) -> Result<ExitCode> {
    let status = client.get(&format!("/status/{id}")).await?;
    let word = status["status"].as_str();
    let fetched = match status["result"].is_string() {
        true => download::fetch(client, id, destination).await.map(Some),
        false => Ok(None),
    };
    if let Ok(Some((path, bytes))) = &fetched {
        view.show_result(id, path, *bytes);
    }
    match word {
        Some("complete" | "cancelled") => view.say(word.unwrap_or_default()),
        _ => view.say(&format!("failed: {}", status["reason"].as_str().unwrap_or("no reason given"))),
    }
    match fetched {
        Ok(_) => Ok(exit_code_of(word)),
        // The zip is there, and the error names it.
        Err(error) if has_code(&error, &[download::NOT_UNPACKED]) => Err(error),
        Err(error) => Err(error.context(match location {
            JobLocation::Server => {
                format!("the result was not downloaded; try again: `caisson download {id}`")
            }
            JobLocation::ThisProcess => "the result was not downloaded, and nothing is kept".to_owned(),
        })),
    }
}
