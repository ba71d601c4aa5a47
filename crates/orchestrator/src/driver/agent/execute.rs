//! Runs a process for the agent, or continues to follow one, across link failures and server restarts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use agent::{ExecEnd, ExecReport, ExecStart, ProcessRequest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use protocol::{
    CallFollower, CallKey, CallStatus, Exec, ExecEvent, ExecOutcome, ExecUpdate, Follow, GuestClient,
    ProtocolError,
};
use sandbox::Usage;
use tokio::time::{Instant, sleep_until, timeout};

use super::super::exec::{environment, plain_environment, wait_for_cancel};
use super::super::{Captured, Evidence, LimitHints, OutputSink, Stop, explain_end};
use super::host::AgentHost;
use super::transcript::Transcript;
use crate::event::{CallRef, Event, EventBody};

/// How long a process may take to exit after it was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(15);

/// Why following stopped before the process exited.
enum Ending {
    Broken(ProtocolError),
    Stop(Stop),
    TimeOver,
}

impl AgentHost<'_> {
    /// Runs a process, or follows one that is running, for at most `order.wait`.
    pub(in crate::driver) async fn run(&self, order: ProcessRequest) -> Result<ExecReport, Stop> {
        let started = Instant::now();
        let expiry = self.driver.core.host_disk.sleep_unfrozen(order.wait);
        tokio::pin!(expiry);
        let call = CallRef { id: order.call.clone(), attempt: order.key.attempt };
        let mut sink = OutputSink::new(
            std::sync::Arc::clone(&self.driver.recorder),
            call.clone(),
            None,
            Captured::new(0),
        );
        sink.start_at(order.from_chunk);
        let mut transcript = Transcript::default();
        let past = self.take_logged_output(&order.call);
        if let Some(past) = &past {
            sink.resume(past);
            replay_logged_output(past, &mut transcript);
        }
        let before = match (&order.start, past) {
            // Limit hits from before this process started must not be attributed to it.
            (Some(_), None) => self.driver.usage(self.attributed_usage()).await,
            _ => self.attributed_usage(),
        };
        let exec = order.start.as_ref().map(|start| self.exec_of(start, &order.key, &call));
        loop {
            let client = self.driver.guest().await?;
            let followed = begin(&client, exec.as_ref(), &order.key, sink.wanted_chunk()).await;
            let ending = match followed {
                Ok(mut follower) => {
                    match self.follow(&mut follower, &mut sink, &mut transcript, &mut expiry).await {
                        Ok(outcome) => {
                            sink.flush_all().await?;
                            self.forget(&client, &order);
                            self.keep_cell_end(&order.call, &outcome);
                            let hints = sink.limit_hints();
                            let end = self.end_of(&outcome, order.start.as_ref(), before, hints).await;
                            let refused = self.driver.recorder.refusals_of(&call).await;
                            let images = transcript.take_images();
                            let mut output = transcript.into_text();
                            if let Some(refused) = refused {
                                // Append the refused connections, which the process may not have printed itself, at
                                // the end of the output.
                                let gap = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
                                output += &format!("{gap}{refused}\n");
                            }
                            return Ok(ExecReport {
                                end: Some(end),
                                images,
                                output,
                                next_chunk: outcome.next_sequence,
                                duration_ms: outcome.duration_ms,
                            });
                        }
                        Err(ending) => ending,
                    }
                }
                Err(error) => Ending::Broken(error),
            };
            match ending {
                Ending::Broken(ProtocolError::Refused(message)) => {
                    // The guest does not know the call: the process belonged to an earlier sandbox.
                    let end = ExecEnd { exit_code: None, problem: Some(message) };
                    let next_chunk = order.from_chunk;
                    return Ok(ExecReport { end: Some(end), next_chunk, ..ExecReport::default() });
                }
                Ending::Broken(error) => self.driver.after_break(error).await?,
                Ending::TimeOver => {
                    sink.flush_all().await?;
                    return Ok(ExecReport {
                        end: None,
                        images: transcript.take_images(),
                        output: transcript.into_text(),
                        next_chunk: sink.wanted_chunk(),
                        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
                    });
                }
                Ending::Stop(stop) => {
                    kill(&client, &order.key, &mut sink).await;
                    return Err(stop);
                }
            }
        }
    }

    /// Runs a short command that is not logged, without the job's own environment variables, and returns its output.
    pub(super) async fn run_unlogged(&self, order: ProcessRequest) -> Result<String, Stop> {
        let call = CallRef { id: order.call.clone(), attempt: order.key.attempt };
        let Some(start) = &order.start else { return Ok(String::new()) };
        let exec = Exec { environment: plain_environment(), ..self.exec_of(start, &order.key, &call) };
        let client = self.driver.guest().await?;
        let asking = async {
            let mut text = Vec::new();
            let mut follower = client.exec(exec, Follow::Capped).await?;
            loop {
                match follower.next().await? {
                    ExecUpdate::Event(ExecEvent::Ended(_)) => return Ok::<_, ProtocolError>(text),
                    ExecUpdate::Output(chunk) => text.extend_from_slice(&chunk.bytes),
                    ExecUpdate::Event(_) => {}
                }
            }
        };
        // If the guest cannot answer, assume that nothing is there: the job continues with fewer tools.
        match timeout(order.wait, asking).await {
            Ok(Ok(text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
            _ => Ok(String::new()),
        }
    }

    async fn follow(
        &self,
        follower: &mut CallFollower,
        sink: &mut OutputSink,
        transcript: &mut Transcript,
        expiry: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<ExecOutcome, Ending> {
        let stop = |error: crate::error::OrchestratorError| Ending::Stop(Stop::Failed(error));
        let mut control_request = self.driver.control_request.clone();
        loop {
            let flush_at = sink.flush_at();
            tokio::select! {
                update = follower.next() => match update.map_err(Ending::Broken)? {
                    ExecUpdate::Event(ExecEvent::Ended(outcome)) => return Ok(outcome),
                    ExecUpdate::Output(chunk) => {
                        if chunk.sequence >= sink.wanted_chunk() {
                            transcript.take_chunk(&chunk);
                        }
                        sink.take(chunk).await.map_err(stop)?;
                    }
                    ExecUpdate::Event(ExecEvent::Gap { to_sequence, bytes, .. }) => {
                        transcript.skip(bytes);
                        sink.skip(to_sequence, bytes).await.map_err(stop)?;
                    }
                    ExecUpdate::Event(ExecEvent::Started { .. } | ExecEvent::Progress { .. }) => {}
                },
                () = sleep_until(flush_at.unwrap_or_else(Instant::now)), if flush_at.is_some() => {
                    sink.flush().await.map_err(stop)?;
                }
                () = &mut *expiry => return Err(Ending::TimeOver),
                () = wait_for_cancel(&mut control_request) => return Err(Ending::Stop(Stop::Cancelled)),
                () = self.driver.time_over() => return Err(Ending::Stop(Stop::Deadline)),
            }
        }
    }

    fn exec_of(&self, start: &ExecStart, key: &CallKey, call: &CallRef) -> Exec {
        let mut variables = environment(&self.driver.spec, call);
        if self.has_desktop.load(Ordering::Relaxed) {
            variables.insert("DISPLAY".to_owned(), protocol::DISPLAY.to_owned());
        }
        variables.extend(start.environment.clone());
        Exec {
            key: key.clone(),
            program: start.program.clone(),
            environment: variables,
            directory: None,
            stdin: start.stdin.clone(),
            keep_stdin_open: start.keep_stdin_open,
            terminal: None,
            timeout_ms: start.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            kill_grace_ms: 2000,
        }
    }

    /// How the process ended, and the resource limit that explains it, if any.
    async fn end_of(
        &self,
        outcome: &ExecOutcome,
        start: Option<&ExecStart>,
        before: Usage,
        hints: LimitHints,
    ) -> ExecEnd {
        let after = match outcome.end {
            protocol::ExecEnd::Code(0) => before,
            _ => self.driver.usage(before).await,
        };
        self.set_attributed_usage(after);
        let timeout_s = start.and_then(|start| start.timeout).map_or(0.0, |time| time.as_secs_f64());
        let evidence =
            Evidence { outcome, expectation: None, text_found: true, hints, before, after, timeout_s };
        let end = explain_end(&evidence);
        ExecEnd { exit_code: end.exit_code, problem: end.reason }
    }

    /// Lets the guest drop the output of a call whose output is in the log. Runs in the background.
    fn forget(&self, client: &GuestClient, order: &ProcessRequest) {
        let (client, key) = (client.clone(), order.key.clone());
        tokio::spawn(async move {
            let _ = client.forget(key).await;
        });
    }
}

/// Starts a process, or follows it if the guest already knows the call.
async fn begin(
    client: &GuestClient,
    exec: Option<&Exec>,
    key: &CallKey,
    from_chunk: u64,
) -> Result<CallFollower, ProtocolError> {
    if let Some(exec) = exec {
        match client.call_status(key.clone()).await? {
            CallStatus::Unknown => return client.exec(exec.clone(), Follow::Capped).await,
            CallStatus::Running { .. } | CallStatus::Ended(_) => {}
            CallStatus::File(_) | CallStatus::Answered => {
                return Err(ProtocolError::Unexpected("the result of a file operation for a process".into()));
            }
        }
    }
    client.follow(key.clone(), from_chunk, Follow::Capped).await
}

/// Kills a process and records its remaining output.
async fn kill(client: &GuestClient, key: &CallKey, sink: &mut OutputSink) {
    let killing = async {
        client.kill(key.clone()).await?;
        let mut follower = client.follow(key.clone(), sink.wanted_chunk(), Follow::Capped).await?;
        loop {
            match follower.next().await? {
                ExecUpdate::Event(ExecEvent::Ended(_)) => return Ok::<(), ProtocolError>(()),
                ExecUpdate::Output(chunk) => drop(sink.take(chunk).await),
                ExecUpdate::Event(_) => {}
            }
        }
    };
    let _ = timeout(KILL_TIMEOUT, killing).await;
    let _ = sink.flush_all().await;
}

/// Replays what the log already has of a call that was in flight when the server died.
fn replay_logged_output(past: &[Event], transcript: &mut Transcript) {
    for event in past {
        match &event.body {
            EventBody::CallOutput { text, base64: true, .. } => {
                transcript.take(&STANDARD.decode(text).unwrap_or_default());
            }
            EventBody::CallOutput { text, .. } => transcript.take(text.as_bytes()),
            EventBody::CallOutputDropped { bytes, .. } => transcript.skip(*bytes),
            EventBody::CallDisplay { shown, .. } => transcript.take(format!("{}\n", shown.text).as_bytes()),
            _ => {}
        }
    }
}
