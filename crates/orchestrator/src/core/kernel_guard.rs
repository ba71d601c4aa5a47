//! Decides whether a cell may be passed to its kernel, in a job that has lost a sandbox.

use std::sync::atomic::{AtomicBool, Ordering};

use job::{
    CallEnd, CallStatus, JobId, KERNEL_EVENTS, KERNEL_LOST, KernelHistory, KernelSelector, KernelUse,
    LostKernel, OnKernelLoss,
};
use store::Store;
use tokio::sync::watch;

use crate::error::OrchestratorError;

/// Checks the cells of a job. It only remembers when the log need not be read again.
#[derive(Debug)]
pub(crate) struct LostKernelGuard {
    on_loss: OnKernelLoss,
    job_settled: AtomicBool,
    api_settled: AtomicBool,
    replaying: watch::Sender<bool>,
}

/// A cell that is not passed to a kernel, because the kernel's variables are lost.
#[derive(Debug, PartialEq)]
pub(crate) struct RefusedCell {
    kernel: LostKernel,
    failed: Option<String>,
}

impl RefusedCell {
    /// The reason, for people and models.
    pub(crate) fn reason(&self) -> String {
        let LostKernel { name, .. } = &self.kernel;
        let gone = self.kernel.gone();
        let how = match &self.failed {
            None => format!("the kernel {name} was lost with its sandbox"),
            Some(call) => {
                format!(
                    "the kernel {name} was lost with its sandbox, and {call} failed when it was run again"
                )
            }
        };
        format!(
            "{KERNEL_LOST}: {how}; {gone}. This cell was not run; the next one gets a new kernel. Define again what is needed"
        )
    }

    /// The end of the refused cell's call.
    pub(crate) fn end(&self) -> CallEnd {
        CallEnd {
            status: CallStatus::Failed,
            code: Some(KERNEL_LOST.into()),
            reason: Some(self.reason()),
            kernel: Some(self.kernel()),
            ..CallEnd::default()
        }
    }

    /// The kernel that the cell was meant for.
    pub(crate) fn kernel(&self) -> KernelUse {
        let LostKernel { name, language, .. } = &self.kernel;
        KernelUse { name: name.clone(), language: language.clone(), life: 0, alive: false }
    }
}

impl LostKernelGuard {
    /// Creates the gate of a job that has lost this many sandboxes.
    pub(crate) fn new(on_loss: OnKernelLoss, losses: u32) -> Self {
        let is_settled = losses == 0;
        Self {
            on_loss,
            job_settled: AtomicBool::new(is_settled),
            api_settled: AtomicBool::new(is_settled),
            replaying: watch::Sender::new(!is_settled && on_loss == OnKernelLoss::Replay),
        }
    }

    /// Notes that a sandbox was lost.
    pub(crate) fn lose(&self) {
        self.job_settled.store(false, Ordering::SeqCst);
        self.api_settled.store(false, Ordering::SeqCst);
        self.replaying.send_replace(self.on_loss == OnKernelLoss::Replay);
    }

    /// Whether cells must be replayed first.
    pub(crate) fn must_replay(&self) -> bool {
        *self.replaying.borrow()
    }

    /// Notes that everything that can be replayed has been.
    pub(crate) fn end_replay(&self) {
        self.replaying.send_replace(false);
    }

    /// Returns when no replay is running.
    pub(crate) async fn wait_for_replay(&self) {
        let mut replaying = self.replaying.subscribe();
        let _ = replaying.wait_for(|replaying| !*replaying).await;
    }

    /// The refusal of a cell; `None` if it may run.
    pub(crate) async fn refuse(
        &self,
        store: &dyn Store,
        job: JobId,
        wanted: KernelSelector<'_>,
        is_api: bool,
    ) -> Result<Option<RefusedCell>, OrchestratorError> {
        let settled = if is_api { &self.api_settled } else { &self.job_settled };
        if settled.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let history = KernelHistory::of(&store.all_events(job, KERNEL_EVENTS, 0).await?);
        if history.is_settled(is_api) {
            settled.store(true, Ordering::SeqCst);
        }
        let refused = history.unreported_loss(&wanted, is_api, self.on_loss == OnKernelLoss::Replay);
        Ok(refused.map(|(kernel, failed)| RefusedCell { kernel, failed }))
    }
}
