//! What the log says about kernels: the cells that each has run since it was started, and what was lost. Pure.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::names::Names;
use crate::event::Kinds;
use crate::event::LostKernel;
use crate::event::UserActionKind;
use crate::event::{CallEnd, CallRef, CallStatus, Event, EventBody, EventKind};
use crate::step::{Language, step_tool};

/// The events that concern kernels.
pub const KERNEL_EVENTS: Kinds = Kinds::Only(&[
    EventKind::CallStarted,
    EventKind::CallEnded,
    EventKind::SandboxLost,
    EventKind::UserAction,
]);

/// The code of a cell that was refused because its kernel was lost.
pub const KERNEL_LOST: &str = "kernel_lost";

/// A cell as recorded at the start of its call: tool and input.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedCell {
    /// The call; the newest if there were several attempts.
    pub call: CallRef,
    /// The step that the cell belongs to, if any.
    pub step: Option<usize>,
    pub tool: String,
    pub input: Value,
    succeeded: bool,
}

impl LoggedCell {
    /// The code; tools take it under different names.
    pub fn code(&self) -> &str {
        ["code", "source", "script"].iter().find_map(|key| self.input.get(key)?.as_str()).unwrap_or_default()
    }
}

/// A lost kernel, and how the loss was handled so far.
#[derive(Debug, Clone, PartialEq)]
struct Loss {
    /// Cells that have not been replayed yet.
    cells: Vec<LoggedCell>,
    lost: LostKernel,
    /// Whether a cell of the job itself was refused because of it.
    job_notified: bool,
    /// Whether a cell submitted over the API was refused because of it.
    api_notified: bool,
    /// The call whose replay failed.
    failed: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct KernelState {
    language: String,
    life: u64,
    cells: Vec<LoggedCell>,
    loss: Option<Loss>,
}

impl KernelState {
    fn forget(&mut self) {
        self.life = 0;
        self.cells.clear();
    }

    /// The cells that would be lost with the sandbox: those that ran, and those still waiting to be replayed. Steps
    /// from `steps_kept` on are repeated anyway.
    fn would_lose(&self, steps_kept: usize) -> Vec<LoggedCell> {
        let waiting = self.loss.as_ref().filter(|loss| !loss.job_notified && loss.failed.is_none());
        let waiting = waiting.map_or(&[][..], |loss| loss.cells.as_slice());
        let is_lost = |cell: &&LoggedCell| cell.step.is_none_or(|step| step < steps_kept);
        self.cells.iter().chain(waiting).filter(is_lost).cloned().collect()
    }

    fn lost(&self, name: &str, cells: &[LoggedCell]) -> LostKernel {
        let mut names = Names::default();
        for cell in cells {
            names.take(&self.language, cell.code());
        }
        LostKernel::new(name, &self.language, cells.len(), names.into_list())
    }
}

/// A cell to replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    pub cell: LoggedCell,
    /// The attempt to start or to continue.
    pub call: CallRef,
    /// Whether its start is in the log: an earlier server has sent it.
    pub is_begun: bool,
    pub kernel: String,
}

/// All kernels of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KernelHistory {
    kernels: BTreeMap<String, KernelState>,
    open: HashMap<CallRef, LoggedCell>,
}

impl KernelHistory {
    /// Builds the history from a log, or from only those events that [`KERNEL_EVENTS`] names.
    pub fn of(log: &[Event]) -> Self {
        let mut history = Self::default();
        log.iter().for_each(|event| history.apply(event));
        history
    }

    fn apply(&mut self, event: &Event) {
        match (&event.body, &event.call) {
            (EventBody::CallStarted { step, tool, input }, Some(call)) if is_cell(tool) => {
                let (call, step, tool, input) = (call.clone(), *step, tool.clone(), input.clone());
                self.open.insert(call.clone(), LoggedCell { call, step, tool, input, succeeded: false });
            }
            (EventBody::CallEnded(end), Some(call)) => {
                if let Some(cell) = self.open.remove(call) {
                    self.end(cell, end);
                }
            }
            (EventBody::UserAction(action), _)
                if action.what == UserActionKind::KernelRestarted && action.failed.is_none() =>
            {
                if let Some(state) = action.name.as_ref().and_then(|name| self.kernels.get_mut(name)) {
                    state.forget();
                }
            }
            (EventBody::SandboxLost { steps_kept, .. }, _) => self.lose(*steps_kept),
            _ => {}
        }
    }

    fn end(&mut self, mut cell: LoggedCell, end: &CallEnd) {
        let Some(kernel) = &end.kernel else {
            return self.count_attempt(&cell.call, end);
        };
        // If another kernel ran the replayed cell, it is not replayed again, or that would go on forever.
        for (_, other) in self.kernels.iter_mut().filter(|(name, _)| **name != kernel.name) {
            if let Some(loss) = &mut other.loss
                && let Some(index) = loss.cells.iter().position(|waiting| waiting.call.id == cell.call.id)
            {
                loss.cells.remove(index);
                loss.failed = Some(cell.call.id.clone());
            }
        }
        let state = self.kernels.entry(kernel.name.clone()).or_default();
        if end.code.as_deref() == Some(KERNEL_LOST) {
            if let Some(loss) = &mut state.loss {
                let told =
                    if is_api_call(&cell.call) { &mut loss.api_notified } else { &mut loss.job_notified };
                *told = true;
            }
            return;
        }
        state.language.clone_from(&kernel.language);
        cell.succeeded = end.status == CallStatus::Succeeded;
        if let Some(loss) = &mut state.loss
            && let Some(index) = loss.cells.iter().position(|waiting| waiting.call.id == cell.call.id)
        {
            let before = loss.cells.remove(index);
            if (before.succeeded && !cell.succeeded) || !kernel.alive {
                loss.failed = Some(cell.call.id.clone());
            }
        }
        if !kernel.alive {
            state.forget();
        } else if end.status != CallStatus::Interrupted {
            if state.life != kernel.life {
                state.forget();
                state.life = kernel.life;
            }
            state.cells.push(cell);
        }
    }

    /// Counts an attempt that no kernel finished: the sandbox was lost again, or the kernel could not be started.
    fn count_attempt(&mut self, call: &CallRef, end: &CallEnd) {
        for loss in self.kernels.values_mut().filter_map(|state| state.loss.as_mut()) {
            let Some(cell) = loss.cells.iter_mut().find(|cell| cell.call.id == call.id) else { continue };
            cell.call.attempt = call.attempt;
            if end.status != CallStatus::Interrupted {
                loss.failed = Some(call.id.clone());
            }
        }
    }

    fn lose(&mut self, steps_kept: usize) {
        self.open.clear();
        for (name, state) in &mut self.kernels {
            let cells = state.would_lose(steps_kept);
            let lost = state.lost(name, &cells);
            state.loss = (!cells.is_empty()).then_some(Loss {
                cells,
                lost,
                job_notified: false,
                api_notified: false,
                failed: None,
            });
            state.forget();
        }
    }

    /// The kernels that would be lost if the sandbox were lost now.
    pub fn would_lose(&self, steps_kept: usize) -> Vec<LostKernel> {
        let found = self.kernels.iter().filter_map(|(name, state)| {
            let cells = state.would_lose(steps_kept);
            (!cells.is_empty()).then(|| state.lost(name, &cells))
        });
        found.collect()
    }

    /// The next cell to replay, in the original order.
    pub fn next_replay(&self) -> Option<Replay> {
        let waits = |state: &&KernelState| state.loss.as_ref().is_some_and(|loss| loss.failed.is_none());
        let cells = self
            .kernels
            .iter()
            .filter(|(_, state)| waits(state))
            .filter_map(|(name, state)| Some((name, state.loss.as_ref()?.cells.first()?)));
        let (kernel, cell) = cells.min_by_key(|(kernel, cell)| (cell.step, *kernel))?;
        let begun = self.open.keys().find(|call| call.id == cell.call.id).cloned();
        let is_begun = begun.is_some();
        let call =
            begun.unwrap_or_else(|| CallRef { id: cell.call.id.clone(), attempt: cell.call.attempt + 1 });
        Some(Replay { cell: cell.clone(), call, is_begun, kernel: kernel.clone() })
    }

    /// The lost kernel that a cell is meant for, if the cell must be refused because of the loss. With `replay`, only
    /// a kernel whose cells could not be replayed counts.
    pub fn unreported_loss(
        &self,
        wanted: &KernelSelector<'_>,
        is_api: bool,
        replay: bool,
    ) -> Option<(LostKernel, Option<String>)> {
        let found = self.kernels.iter().find(|(name, state)| match wanted {
            // A language in place of a name stands for its kernel.
            KernelSelector::Name(wanted @ ("python" | "typescript")) => {
                *wanted == name.as_str() || *wanted == state.language
            }
            KernelSelector::Name(wanted) => *wanted == name.as_str(),
            KernelSelector::Language(language) => *language == state.language,
        });
        let loss = found?.1.loss.as_ref()?;
        let is_told = if is_api { loss.api_notified } else { loss.job_notified };
        let is_lost = !is_told && (!replay || loss.failed.is_some());
        is_lost.then(|| (loss.lost.clone(), loss.failed.clone()))
    }

    /// Whether no further cell has to be refused because of a loss.
    pub fn is_settled(&self, is_api: bool) -> bool {
        self.kernels.values().all(|state| {
            state.loss.as_ref().is_none_or(|loss| {
                let is_told = if is_api { loss.api_notified } else { loss.job_notified };
                is_told || (loss.cells.is_empty() && loss.failed.is_none())
            })
        })
    }
}

/// The kernel that a cell is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelSelector<'a> {
    Name(&'a str),
    Language(&'a str),
}

impl Language {
    /// The kernel that runs cells of this language.
    #[must_use]
    pub fn wanted(&self) -> KernelSelector<'_> {
        match self {
            Self::Python => KernelSelector::Language("python"),
            Self::Typescript => KernelSelector::Language("typescript"),
            Self::Kernel(name) => KernelSelector::Name(name),
        }
    }
}

fn is_cell(tool: &str) -> bool {
    step_tool(tool).is_some_and(|tool| tool.is_cell)
}

/// Whether a call came over the API and not from the job itself.
fn is_api_call(call: &CallRef) -> bool {
    call.id.starts_with("api-")
}

#[cfg(test)]
mod tests;
