//! Runs code for the agent: in a live kernel if the image has one, otherwise in a new process.

use std::sync::PoisonError;
use std::time::Duration;

use agent::{CodeExecution, CodeReport, ExecStart, ProcessRequest};
use job::{EventBody, KernelUse, Language, NewEvent};
use protocol::{CallKey, ExecOutcome};

use super::super::DriverExit;
use super::host::AgentHost;
use crate::driver::cells::program_of_code;

/// Longer than the guest needs to kill a process that ignores signals, or to start a kernel.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// What the log records about the end of a cell beside its result.
#[derive(Debug, Default)]
pub(in crate::driver) struct CellEnd {
    kernel: Option<KernelUse>,
    code: Option<String>,
    note: Option<String>,
}

impl AgentHost<'_> {
    pub(super) async fn code(&self, order: CodeExecution) -> Result<CodeReport, DriverExit> {
        let language = match order.language {
            agent::Language::Python => Language::Python,
            agent::Language::TypeScript => Language::Typescript,
        };
        if let Some(refused) = self.driver.refuse_cell(language.wanted()).await? {
            let end = refused.end();
            let cell = CellEnd { kernel: end.kernel, code: end.code, note: None };
            self.lock_cells().insert(order.call, cell);
            return Ok(CodeReport { problem: Some(refused.reason()), ..CodeReport::default() });
        }
        let timeout = self.driver.bounded_timeout(order.timeout);
        let start = ExecStart {
            timeout: Some(timeout),
            ..ExecStart::program(program_of_code(&language, &order.code))
        };
        let report = self
            .run(ProcessRequest {
                key: CallKey::new(order.call.clone(), 1),
                call: order.call.clone(),
                start: Some(start),
                from_chunk: 0,
                wait: timeout + END_TIMEOUT,
            })
            .await?;
        let problem = match report.end {
            Some(end) => end.problem,
            None => Some("it did not end in time".into()),
        };
        let note = self.lock_cells().get(&order.call).and_then(|cell| cell.note.clone());
        let (output, images, duration_ms) = (report.output, report.images, report.duration_ms);
        // The model must not try again with more time.
        let is_bounded = timeout < order.timeout && u128::from(duration_ms) >= timeout.as_millis();
        let bounded = is_bounded
            .then(|| format!("{} s are the most that this server allows for one call", timeout.as_secs()));
        let notes: Vec<String> = note.into_iter().chain(bounded).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(CodeReport { output, images, problem, note, duration_ms })
    }

    fn lock_cells(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<String, CellEnd>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what the guest reports about the kernel that ran a cell, for the end event of its call.
    pub(super) fn keep_cell_end(&self, call: &str, outcome: &ExecOutcome) {
        let Some(kernel) = outcome.kernel.clone().and_then(KernelUse::of) else { return };
        let cell = CellEnd { kernel: Some(kernel), code: None, note: outcome.note.clone() };
        self.lock_cells().insert(call.to_owned(), cell);
    }

    /// Adds what was kept for this call to its end event.
    pub(super) fn with_cell_end(&self, mut event: NewEvent) -> NewEvent {
        if let (EventBody::CallEnded(end), Some(call)) = (&mut event.body, &event.call)
            && let Some(cell) = self.lock_cells().remove(&call.id)
        {
            end.kernel = cell.kernel;
            end.code = cell.code.or(end.code.take());
        }
        event
    }
}
