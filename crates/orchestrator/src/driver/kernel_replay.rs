//! Handles notebook kernels that were lost with a sandbox: reports them, refuses the next cell, or replays the cells.

use std::time::Duration;

use job::{
    CellCode, EventBody, KERNEL_EVENTS, KernelHistory, KernelSelector, Language, LostKernel, Replay,
    StepCall, StepOptions, Work,
};
use store::StoreError;
use tokio::time::Instant;

use super::call::key_of;
use super::step_program::StepProgram;
use super::steps::end_of_stop;
use super::{Driver, DriverExit};
use crate::core::kernel_guard::RefusedCell;
use crate::error::OrchestratorError;

/// Timeout for replaying a cell of an agent or of the API that had no timeout of its own.
const REPLAY_TIMEOUT_S: f64 = 600.0;

impl Driver {
    /// The kernels that are lost together with the sandbox.
    pub(super) async fn lost_kernels(&self, steps_kept: usize) -> Result<Vec<LostKernel>, OrchestratorError> {
        Ok(self.kernel_history().await?.would_lose(steps_kept))
    }

    async fn kernel_history(&self) -> Result<KernelHistory, OrchestratorError> {
        let log = self.core.store.all_events(self.recorder.job(), KERNEL_EVENTS, 0).await?;
        Ok(KernelHistory::of(&log))
    }

    /// The refusal of a cell, because its kernel was lost; `None` if the cell may run.
    pub(super) async fn refuse_cell(
        &self,
        wanted: KernelSelector<'_>,
    ) -> Result<Option<RefusedCell>, DriverExit> {
        let refused = self.kernels.refuse(self.core.store.as_ref(), self.recorder.job(), wanted, false).await;
        Ok(refused?)
    }

    /// Replays the cells of lost kernels, if the job is configured to; each as a further attempt of its call.
    pub(super) async fn replay_cells(&mut self) -> Result<(), DriverExit> {
        if !self.kernels.must_replay() {
            return Ok(());
        }
        while let Some(replay) = self.kernel_history().await?.next_replay() {
            if self.is_cancelled() && !replay.is_begun {
                return Err(DriverExit::Cancelled);
            }
            if self.is_time_over() && !replay.is_begun {
                return Err(DriverExit::Deadline);
            }
            self.replay_cell(&replay).await?;
        }
        self.kernels.end_replay();
        Ok(())
    }

    async fn replay_cell(
        &mut self,
        Replay { cell, call, is_begun, kernel }: &Replay,
    ) -> Result<(), DriverExit> {
        let Some((code, options)) = self.code_of(cell.step, &cell.tool, cell.code(), &cell.input) else {
            return Err(DriverExit::Failed(OrchestratorError::Store(StoreError::Unreadable {
                what: format!("the cell {}", call.id),
                source: "its log has no code".into(),
            })));
        };
        if !is_begun {
            let (step, tool, input) = (cell.step, cell.tool.clone(), cell.input.clone());
            let started = EventBody::CallStarted { step, tool, input };
            self.recorder.record(started.of(call)).await?;
        }
        let started = Instant::now();
        // Keep `past`: later steps use it to look up calls that an earlier server started.
        let ran = self.run_process(call, StepProgram::of_cell(&code), &options).await;
        let end = match ran {
            Ok((end, _)) => end,
            Err(stop) => {
                if let Some(end) = end_of_stop(&stop, started) {
                    self.recorder.record(EventBody::CallEnded(end).of(call)).await?;
                }
                return Err(stop);
            }
        };
        let note = format!("run again because the kernel {kernel} was lost with its sandbox");
        self.recorder.record(EventBody::CallEnded(end.with_note(Some(note))).of(call)).await?;
        self.forget_call(key_of(call));
        self.checkpoint_schedule().worked(started.elapsed());
        Ok(())
    }

    /// The code of a cell, and how the step that it belongs to is treated.
    fn code_of(
        &self,
        step: Option<usize>,
        tool: &str,
        code: &str,
        input: &serde_json::Value,
    ) -> Option<(CellCode, StepOptions)> {
        if let (Some(index), Work::Steps(steps)) = (step, &self.spec.work) {
            let step = steps.get(index)?;
            return match step.tool.call() {
                Ok(StepCall::Cell(cell)) => Some((cell, step.options.clone())),
                _ => None,
            };
        }
        let code = Some(code).filter(|code| !code.is_empty())?.to_owned();
        let language = match tool {
            "python" => Language::Python,
            "typescript" => Language::Typescript,
            _ => Language::Kernel(input.get("kernel")?.as_str()?.to_owned()),
        };
        let asked = input.get("timeout_s").and_then(serde_json::Value::as_f64);
        let timeout_s =
            asked.filter(|seconds| (0.001..=3600.0).contains(seconds)).unwrap_or(REPLAY_TIMEOUT_S);
        let timeout_s = self.bounded_timeout(Duration::from_secs_f64(timeout_s)).as_secs_f64();
        let options = StepOptions { timeout_s: Some(timeout_s), ..StepOptions::default() };
        Some((CellCode { language, code }, options))
    }
}
