//! The events of a job. The event log is the source of truth; everything else is derived from it.

mod display;
mod kernel;
mod kinds;
mod mcp;
mod stored_file;
mod user_action;

pub use self::display::{Shown, ShownError};
pub use self::kernel::{KernelUse, LostKernel};
pub use self::kinds::{CALLS, Kinds, OUTPUT, WITHOUT_OUTPUT};
pub use self::mcp::{McpChange, McpServers, McpState};
pub use self::stored_file::StoredFile;
pub use self::user_action::{ContentDigest, UserAction, UserActionKind};

use agent::{
    Author, Budget, Finished, InputAnswer, InputRequest, ModelAnswerLost, ModelAnswered, Notice, Plan,
    SummaryCreated, TurnStarted,
};
use sandbox::{EndReason, LimitKind, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::{Display, EnumDiscriminants, EnumString, IntoStaticStr, VariantArray};
use utoipa::ToSchema;

use crate::access::Actor;
use crate::ids::{Generation, Sequence};
use crate::spec::JobSpec;
use crate::state::JobState;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// 1-based position in the job's log, without gaps.
    pub sequence: Sequence,
    /// Unix time in milliseconds.
    pub time_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallRef>,
    /// The API caller who caused the event, if a person or an external program did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
    #[serde(flatten)]
    pub body: EventBody,
}

/// One attempt at one call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct CallRef {
    /// Unique within the job.
    pub id: String,
    /// Counts from 1.
    pub attempt: u32,
}

/// An event that has not been appended to the log yet and has no sequence number.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    pub call: Option<CallRef>,
    /// The API caller who caused the event.
    pub actor: Option<Actor>,
    pub body: EventBody,
}

impl NewEvent {
    /// Sets the API caller who caused the event.
    #[must_use]
    pub fn with_actor(self, actor: Option<&Actor>) -> Self {
        Self { actor: actor.cloned(), ..self }
    }
}

impl From<EventBody> for NewEvent {
    fn from(body: EventBody) -> Self {
        Self { call: None, actor: None, body }
    }
}

impl EventBody {
    /// Turns the event into one that belongs to `call`.
    #[must_use]
    pub fn of(self, call: &CallRef) -> NewEvent {
        NewEvent { call: Some(call.clone()), actor: None, body: self }
    }
}

/// What happened. A new kind also needs a row in `docs/reference/events.md`; tests compare that page with this enum, the
/// command line and the web page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, EnumDiscriminants)]
#[serde(tag = "kind", content = "data", rename_all = "snake_case")]
#[strum_discriminants(name(EventKind), derive(Display, EnumString, Hash, IntoStaticStr, VariantArray))]
#[strum_discriminants(strum(serialize_all = "snake_case"))]
pub enum EventBody {
    JobCreated {
        spec: Box<JobSpec>,
    },
    StateChanged {
        state: JobState,
        /// Machine-readable reason, if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// Human-readable reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A user asked to cancel, pause or resume the job.
    ControlRequested {
        request: ControlRequest,
    },
    /// The idle timeout of a bare sandbox was changed.
    IdleTimeoutChanged {
        /// The new idle timeout in milliseconds.
        idle_ms: i64,
    },
    /// A user changed the time limit of a job.
    TimeLimitChanged {
        /// The time limit before, in milliseconds.
        before_ms: i64,
        /// The new time limit in milliseconds.
        after_ms: i64,
    },
    /// The sandbox is about to be created.
    SandboxRequested {
        sandbox: SandboxId,
    },
    /// The guest has answered.
    SandboxReady {
        sandbox: SandboxId,
        /// Changes whenever the guest is restarted.
        boot_id: String,
        /// Limits that this host does not enforce.
        unenforced: Vec<Unenforced>,
    },
    /// The sandbox is gone. Calls in flight were interrupted; steps after the checkpoint are undone.
    SandboxLost {
        sandbox: SandboxId,
        /// Machine-readable reason.
        reason: EndReason,
        /// Human-readable reason.
        detail: String,
        /// Number of steps that the restored workspace contains.
        steps_kept: usize,
        /// Notebook kernels that were lost with the sandbox.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        kernels: Vec<LostKernel>,
    },
    /// All processes of the sandbox are frozen, whatever the state of the job.
    SandboxPaused {
        sandbox: SandboxId,
        /// Machine-readable reason: `host_disk_full`.
        code: String,
        /// Human-readable reason.
        reason: String,
    },
    /// The processes of the sandbox are running again.
    SandboxResumed {
        sandbox: SandboxId,
    },
    /// A call is about to be sent to the guest.
    CallStarted {
        /// The step that the call runs, counted from 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<usize>,
        tool: String,
        input: Value,
    },
    /// Output of a call.
    CallOutput {
        /// `stdout`, `stderr` or `terminal`.
        stream: String,
        /// The guest's number of the first chunk after these bytes.
        next_chunk: u64,
        /// The output; base64 if it is not UTF-8.
        text: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        base64: bool,
        /// Number of bytes at the end of the last chunk that start a character and come with the next event.
        #[serde(default, skip_serializing_if = "is_zero")]
        held_bytes: usize,
    },
    /// Output that exceeded the limit and was dropped.
    CallOutputDropped {
        bytes: u64,
        /// The guest's number of the next chunk that was kept.
        next_chunk: u64,
    },
    /// A notebook cell displayed something other than text output: a result, an image or an error.
    CallDisplay {
        #[serde(flatten)]
        shown: Shown,
        /// The guest's number of the first chunk after the display.
        next_chunk: u64,
    },
    CallEnded(CallEnd),
    /// The workspace was saved.
    Checkpoint {
        /// Number of completed steps that the checkpoint contains.
        steps: usize,
        /// Size of the archive.
        bytes: u64,
    },
    /// An outbound connection.
    Egress(egress::EgressEvent),
    /// What the desktop showed before the workspace was collected.
    ScreenCaptured {
        /// Digest, type and size of the image.
        screenshot: Value,
    },
    /// The workspace was collected and stored.
    ArtifactStored(Artifact),
    /// A message for people who read the log.
    Note {
        text: String,
    },
    /// The driver is about to call the model.
    TurnStarted(TurnStarted),
    ModelAnswered(Box<ModelAnswered>),
    PlanChanged {
        plan: Plan,
        by: Author,
    },
    /// The agent wrote or removed a note.
    NoteSaved {
        name: String,
        /// Empty if the note was removed.
        text: String,
    },
    /// A user sent a message to the agent.
    MessageReceived {
        text: String,
    },
    /// An input request was opened.
    InputRequested(InputRequest),
    /// An input request was answered or timed out.
    InputAnswered {
        id: String,
        /// `None` if the request timed out.
        answer: Option<InputAnswer>,
    },
    BudgetChanged {
        budget: Budget,
    },
    /// The orchestrator sent a notice to the agent.
    AgentNotified(Notice),
    /// A context change that no other event describes.
    ContextChanged(context::EntryBody),
    /// Model answers broke off and no complete one arrived; the tokens they used still count.
    ModelAnswerLost(Box<ModelAnswerLost>),
    /// A model was asked to summarize older events ahead of time.
    SummaryCreated(Box<SummaryCreated>),
    /// The agent has finished its work.
    AgentFinished(Finished),
    /// A user took over the sandbox; the agent is paused.
    TakenOver {
        by: String,
        /// Digest of the token that the holder's clients present.
        lock: String,
    },
    /// The sandbox was handed back to the agent.
    HandedBack {
        /// The user who held the sandbox.
        by: String,
    },
    /// An MCP server connected, disconnected or changed its tools.
    McpChanged(McpChange),
    /// Files in the workspace changed.
    FilesChanged(FilesChanged),
    /// A user acted on the sandbox over the API in a way that is not a call.
    UserAction(UserAction),
    /// A file beside the log has its final content; records the digest of the file.
    AuditFileStored(StoredFile),
    /// Stands for an event whose payload retention has dropped; only its kind remains. Never written to the log.
    PayloadDropped {
        /// Kind of the original event.
        kind: String,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// What a user asked of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ControlRequest {
    Cancel,
    Pause,
    Resume,
}

/// A limit that is not enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unenforced {
    pub limit: LimitKind,
    pub why: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallEnd {
    pub status: CallStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Machine-readable failure: `step_failed`, `timeout`, `out_of_memory`, `disk_full`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Human-readable failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub duration_ms: u64,
    /// Bytes of output, kept or dropped.
    #[serde(default)]
    pub output_bytes: u64,
    /// Lines of output, kept or dropped.
    #[serde(default)]
    pub output_lines: u64,
    /// Result of a file tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// How the call was run, for example in a fresh process because the image has no kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The kernel that ran the cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelUse>,
}

impl CallEnd {
    /// Appends `more` to the note.
    #[must_use]
    pub fn with_note(mut self, more: Option<String>) -> Self {
        self.note = match (self.note.take(), more) {
            (Some(note), Some(more)) => Some(format!("{note}\n{more}")),
            (note, more) => note.or(more),
        };
        self
    }
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    #[default]
    Succeeded,
    Failed,
    /// Its sandbox was lost while it ran; how much of it was done is unknown.
    Interrupted,
}

/// How files of the workspace differ from what the log recorded before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesChanged {
    /// Whether `files` lists all files instead of only the changed ones: after the first scan, or in a new sandbox.
    #[serde(default, rename = "whole", skip_serializing_if = "std::ops::Not::not")]
    pub is_whole: bool,
    /// The last event before the scan: what a file tool wrote after it is newer.
    #[serde(default)]
    pub seen_after: Sequence,
    pub files: Vec<FileChange>,
    /// Number of further files that are not listed.
    #[serde(default)]
    pub left_out: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// Relative to the workspace.
    pub path: String,
    /// In bytes.
    #[serde(default)]
    pub size: u64,
    /// Content, if the file is small and text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(default, rename = "removed", skip_serializing_if = "std::ops::Not::not")]
    pub is_removed: bool,
}

impl FileChange {
    pub fn removed(path: String) -> Self {
        Self { path, size: 0, content: None, is_removed: true }
    }
}

/// A finished artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Artifact {
    /// Name in the job's folder.
    pub name: String,
    pub bytes: u64,
    /// Number of files in it.
    pub files: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// `workspace`, or `checkpoint` if the sandbox was lost for good.
    pub source: String,
}

impl EventBody {
    #[must_use]
    pub fn kind(&self) -> EventKind {
        self.into()
    }
}

impl EventKind {
    /// The name of the kind in the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether retention keeps the payload: these events show how a job went, but not what was in it. `job_created` has
    /// the job's specification, without which the job can be neither shown nor retried.
    #[must_use]
    pub fn keeps_payload(self) -> bool {
        matches!(
            self,
            Self::JobCreated
                | Self::StateChanged
                | Self::ControlRequested
                | Self::ArtifactStored
                | Self::AuditFileStored
        )
    }
}

/// Who appends events: the owner, whose writes count only while it owns the job, or an API caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// The driver that holds the lease of this generation.
    Owner(Generation),
    Anybody,
}
