//! Runs a process for the agent, or continues to follow one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent::{ExecEnd, ExecReport, ExecStart, ProcessRequest};
use job::CallRef;
use protocol::{CallKey, Exec, ExecOutcome, OutputChunk};
use sandbox::Usage;
use tokio::time::{Instant, timeout};

use super::super::call::{self, Begin, Consumer, Followed, JobCall, OneLink};
use super::super::process_environment::{environment, plain_environment};
use super::super::{Captured, DriverExit, Evidence, LimitHints, OutputSink, explain_end};
use super::host::AgentHost;
use super::process_output::ProcessOutput;
use crate::error::OrchestratorError;

impl AgentHost<'_> {
    /// Runs a process, or follows one that is running, for at most `order.wait`.
    pub(in crate::driver) async fn run(&self, order: ProcessRequest) -> Result<ExecReport, DriverExit> {
        let started = Instant::now();
        let call = CallRef { id: order.call.clone(), attempt: order.key.attempt };
        let recorder = Arc::clone(&self.driver.recorder);
        let sink = OutputSink::new(recorder, call.clone(), None, Captured::new(0));
        let mut output = ProcessOutput::new(sink, order.from_chunk);
        let past = self.take_logged_output(&order.call);
        if let Some(past) = &past {
            output.resume(past);
        }
        let before = match (&order.start, past) {
            // Limit hits from before this process started must not be attributed to it.
            (Some(_), None) => self.driver.usage(self.attributed_usage()).await,
            _ => self.attributed_usage(),
        };
        let begin = match &order.start {
            Some(start) => Begin::Resume(Box::new(self.exec_of(start, &order.key, &call))),
            None => Begin::Attach,
        };
        let mut host = JobCall::for_at_most(self.driver, order.wait);
        let outcome = match call::run(&mut host, &order.key, begin, &mut output).await? {
            Followed::Ended(outcome) => outcome,
            Followed::StillRunning => {
                output.flush_all().await?;
                let next_chunk = output.wanted_chunk();
                let (output, images) = output.into_transcript().into_parts();
                let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Ok(ExecReport { end: None, images, output, next_chunk, duration_ms });
            }
            // The guest does not know the call: the process belonged to an earlier sandbox.
            Followed::Refused(message) => {
                let end = ExecEnd { exit_code: None, problem: Some(message) };
                let next_chunk = order.from_chunk;
                return Ok(ExecReport { end: Some(end), next_chunk, ..ExecReport::default() });
            }
        };
        output.flush_all().await?;
        self.driver.forget_call(order.key);
        self.keep_cell_end(&order.call, &outcome);
        let end = self.end_of(&outcome, order.start.as_ref(), before, output.limit_hints()).await;
        let kernel = outcome.kernel.as_ref().map(|kernel| kernel.name.as_str());
        let refused = self.driver.recorder.refusals_of(&call, kernel).await;
        let (mut output, images) = output.into_transcript().into_parts();
        if let Some(refused) = refused {
            // Append the refused connections, which the process may not have printed itself, at the end of the output.
            let gap = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
            output += &format!("{gap}{refused}\n");
        }
        Ok(ExecReport {
            end: Some(end),
            images,
            output,
            next_chunk: outcome.next_sequence,
            duration_ms: outcome.duration_ms,
        })
    }

    /// Runs a short command that is not logged, without the job's own environment variables, and returns its output.
    pub(super) async fn run_unlogged(&self, order: ProcessRequest) -> Result<String, DriverExit> {
        let call = CallRef { id: order.call.clone(), attempt: order.key.attempt };
        let Some(start) = &order.start else { return Ok(String::new()) };
        let exec = Exec { environment: plain_environment(), ..self.exec_of(start, &order.key, &call) };
        let mut host = OneLink::new(self.driver.guest().await?);
        let mut text = UnloggedText::default();
        let running = call::run(&mut host, &order.key, Begin::Start(Box::new(exec)), &mut text);
        let followed = timeout(order.wait, running).await;
        // If the guest cannot answer, assume that nothing is there: the job continues with fewer tools.
        match followed {
            Ok(Ok(Followed::Ended(_))) => Ok(String::from_utf8_lossy(&text.bytes).into_owned()),
            _ => Ok(String::new()),
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
}

/// Output that is kept in memory only.
#[derive(Default)]
struct UnloggedText {
    bytes: Vec<u8>,
    next_chunk: u64,
}

impl Consumer for UnloggedText {
    fn wanted_chunk(&self) -> u64 {
        self.next_chunk
    }

    async fn take(&mut self, chunk: OutputChunk) -> Result<(), OrchestratorError> {
        self.next_chunk = chunk.sequence.saturating_add(1);
        self.bytes.extend_from_slice(&chunk.bytes);
        Ok(())
    }

    async fn skip(&mut self, next_chunk: u64, _: u64) -> Result<(), OrchestratorError> {
        self.next_chunk = next_chunk;
        Ok(())
    }
}

/// How a process has ended, for the status that a model reads.
pub(super) fn end_in_words(end: &protocol::ExecEnd) -> String {
    match end {
        protocol::ExecEnd::Code(code) => format!("exit code {code}"),
        protocol::ExecEnd::Signal(signal) => format!("ended by signal {signal}"),
        protocol::ExecEnd::TimedOut => "it ran out of time".into(),
        protocol::ExecEnd::Killed => "it was killed".into(),
        protocol::ExecEnd::NotStarted(why) => format!("not started: {}", why.message),
        protocol::ExecEnd::Raised { .. } => "it raised an exception".into(),
        protocol::ExecEnd::KernelDied(why) => why.clone(),
    }
}
