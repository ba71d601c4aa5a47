//! What happens in a job, as it is logged. The log is the truth; everything else is computed from it.

use agent::{
    AnswerLost, Author, Budget, Finished, ModelAnswered, Notice, PersonAnswer, PersonRequest, Plan,
    SummaryMade, TurnStarted,
};
use sandbox::{EndedReason, LimitKind, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::access::Actor;
use crate::audit::StoredFile;
use crate::code::Shown;
use crate::deeds::PersonDeed;
use crate::ids::{Generation, Sequence};
use crate::kernels::{KernelUse, LostKernel};
use crate::mcp_view::McpChange;
use crate::request::JobSpec;
use crate::state::JobState;

/// One entry of a job's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Position, from 1, without gaps.
    pub sequence: Sequence,
    /// Milliseconds since 1970.
    pub time_ms: i64,
    /// The call it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallRef>,
    /// Who did it over the API, where a person or a program outside did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_by: Option<Actor>,
    /// What happened.
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

/// An event before it has a place in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// The call it belongs to.
    pub call: Option<CallRef>,
    /// Who did it over the API.
    pub done_by: Option<Actor>,
    /// What happened.
    pub body: EventBody,
}

impl NewEvent {
    /// The same as somebody's doing.
    #[must_use]
    pub fn done_by(self, actor: Option<&Actor>) -> Self {
        Self { done_by: actor.cloned(), ..self }
    }
}

impl From<EventBody> for NewEvent {
    fn from(body: EventBody) -> Self {
        Self { call: None, done_by: None, body }
    }
}

impl EventBody {
    /// The event as one of a call.
    #[must_use]
    pub fn of(self, call: &CallRef) -> NewEvent {
        NewEvent { call: Some(call.clone()), done_by: None, body: self }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "data", rename_all = "snake_case")]
pub enum EventBody {
    /// The job was accepted.
    JobCreated {
        /// What it shall do.
        spec: Box<JobSpec>,
    },
    /// The job changed its state.
    StateChanged {
        /// The new state.
        state: JobState,
        /// For programs, where there is a reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// For people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Somebody wants the job to do something.
    Wished {
        /// What: `cancel`, `pause`, `resume`.
        wish: Wish,
    },
    /// A bare sandbox may be idle for another time than before.
    Extended {
        /// Milliseconds.
        idle_ms: i64,
    },
    /// A sandbox is about to be made.
    SandboxRequested {
        /// Its name.
        sandbox: SandboxId,
    },
    /// The guest has answered.
    SandboxReady {
        /// Its name.
        sandbox: SandboxId,
        /// Changes when the guest was started anew.
        boot_id: String,
        /// Limits that this host does not enforce.
        unenforced: Vec<Unenforced>,
    },
    /// The sandbox is gone. Calls in flight were interrupted, steps after the checkpoint are undone.
    SandboxLost {
        /// Its name.
        sandbox: SandboxId,
        /// For programs.
        reason: EndedReason,
        /// For people.
        detail: String,
        /// How many steps the workspace holds after it is restored.
        steps_kept: usize,
        /// Notebook kernels that were lost with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        kernels: Vec<LostKernel>,
    },
    /// All processes of the sandbox stand still, whatever the state of the job.
    SandboxStopped {
        /// Its name.
        sandbox: SandboxId,
        /// For programs: `host_disk_full`.
        code: String,
        /// For people.
        reason: String,
    },
    /// They go on.
    SandboxContinued {
        /// Its name.
        sandbox: SandboxId,
    },
    /// A call is about to be sent.
    CallStarted {
        /// The step it carries out, from 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<usize>,
        /// The tool.
        tool: String,
        /// What it was given.
        input: Value,
    },
    /// A call has printed something.
    CallOutput {
        /// `stdout`, `stderr` or `terminal`.
        stream: String,
        /// The guest's number of the first chunk after these bytes.
        next_chunk: u64,
        /// What was printed; base64 where it is not UTF-8.
        text: String,
        /// Whether `text` is base64.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        base64: bool,
        /// How many bytes at the end of the last chunk are the start of a character and come with the next event.
        #[serde(default, skip_serializing_if = "is_zero")]
        held_bytes: usize,
    },
    /// Output that was too much to keep.
    CallOutputDropped {
        /// How many bytes.
        bytes: u64,
        /// The guest's number of the next chunk that was kept.
        next_chunk: u64,
    },
    /// A cell has shown something beside text: a result, a picture, an error.
    CallDisplay {
        /// What.
        #[serde(flatten)]
        shown: Shown,
        /// The guest's number of the first chunk after it.
        next_chunk: u64,
    },
    /// A call is over.
    CallEnded(CallEnd),
    /// The workspace was saved.
    Checkpoint {
        /// How many steps it holds.
        steps: usize,
        /// Size of the saved archive.
        bytes: u64,
    },
    /// A connection to the outside.
    Egress(egress::EgressEvent),
    /// The workspace was brought home.
    ArtifactStored(Artifact),
    /// Something that people should know.
    Note {
        /// For people.
        text: String,
    },
    /// The model is about to be asked.
    TurnStarted(TurnStarted),
    /// The model has answered.
    ModelAnswered(Box<ModelAnswered>),
    /// There is a new plan.
    PlanChanged {
        /// The plan.
        plan: Plan,
        /// Who wrote it.
        by: Author,
    },
    /// The agent has written something down for itself.
    NoteKept {
        /// Its name.
        name: String,
        /// What it says; empty where it was removed.
        text: String,
    },
    /// A person says something to the agent.
    MessageReceived {
        /// What.
        text: String,
    },
    /// Something waits for a person.
    RequestOpened(PersonRequest),
    /// A person has answered, or the time for it is over.
    RequestAnswered {
        /// Which request.
        id: String,
        /// The answer; nothing when nobody answered in time.
        answer: Option<PersonAnswer>,
    },
    /// What the job may spend was changed.
    BudgetChanged {
        /// What it may spend now.
        budget: Budget,
    },
    /// The agent is told something by the machinery.
    AgentTold(Notice),
    /// Something for the prompt that no other event carries.
    ContextChanged(context::EntryBody),
    /// Answers of the model broke off, none came, and what came must be paid for.
    AnswerLost(Box<AnswerLost>),
    /// A model was asked to sum up older events, ahead of time.
    SummaryMade(Box<SummaryMade>),
    /// The agent has ended its work.
    AgentFinished(Finished),
    /// A person works in the sandbox; the agent waits.
    TakenOver {
        /// Who.
        by: String,
        /// Digest of the token that the holder's clients show.
        lock: String,
    },
    /// The agent may go on.
    HandedBack {
        /// Who had it.
        by: String,
    },
    /// An MCP server has come, gone, or changed its tools.
    McpChanged(McpChange),
    /// Files of the workspace are different from before.
    FilesChanged(FilesChanged),
    /// Somebody did something in the sandbox over the API that is no call.
    PersonActed(PersonDeed),
    /// A file beside the log is as it will stay: its digest.
    AuditStored(StoredFile),
    /// Something happened of which only this is still known: retention has dropped what it said. Never written.
    PayloadDropped {
        /// What kind of event it was.
        kind: String,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// What somebody may want of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// End it.
    Cancel,
    /// Let it wait.
    Pause,
    /// Let it go on.
    Resume,
}

/// A limit that is not enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unenforced {
    /// Which.
    pub limit: LimitKind,
    /// Why not.
    pub why: String,
}

/// How a call ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallEnd {
    /// Whether it did what was expected.
    pub status: CallStatus,
    /// Exit code of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it did not succeed, for programs: `step_failed`, `timeout`, `out_of_memory`, `disk_full`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Why it did not succeed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// From start to end.
    pub duration_ms: u64,
    /// Bytes printed, kept or not.
    #[serde(default)]
    pub output_bytes: u64,
    /// Lines printed, kept or not.
    #[serde(default)]
    pub output_lines: u64,
    /// What a file tool gave back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Something about how it was run, such as a fresh process where a kernel is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The kernel that was given a cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelUse>,
}

impl CallEnd {
    /// Says one more thing about how it was run.
    #[must_use]
    pub(crate) fn with_note(mut self, more: Option<String>) -> Self {
        self.note = match (self.note.take(), more) {
            (Some(note), Some(more)) => Some(format!("{note}\n{more}")),
            (note, more) => note.or(more),
        };
        self
    }
}

/// Whether a call did what was expected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// It did.
    #[default]
    Succeeded,
    /// It did not.
    Failed,
    /// Its sandbox was lost while it ran; nobody knows how far it came.
    Interrupted,
}

/// How files of the workspace differ from what the log told of them before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesChanged {
    /// Whether these are all files, instead of those that have changed: the first look, or a new sandbox.
    #[serde(default, rename = "whole", skip_serializing_if = "std::ops::Not::not")]
    pub is_whole: bool,
    /// The last event before anything was looked at: what a file tool wrote after it is newer.
    #[serde(default)]
    pub seen_after: Sequence,
    /// Which.
    pub files: Vec<FileChange>,
    /// How many more there were.
    #[serde(default)]
    pub left_out: u64,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// Relative to the workspace.
    pub path: String,
    /// In bytes.
    #[serde(default)]
    pub size: u64,
    /// What is in it, where it is text and small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Whether it is gone.
    #[serde(default, rename = "removed", skip_serializing_if = "std::ops::Not::not")]
    pub is_removed: bool,
}

impl FileChange {
    /// A file that is gone.
    pub(crate) fn removed(path: String) -> Self {
        Self { path, size: 0, content: None, is_removed: true }
    }
}

/// A finished artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Artifact {
    /// Name in the job's folder.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// How many files it holds.
    pub files: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Where it comes from: `workspace`, or `checkpoint` when the sandbox was lost for good.
    pub source: String,
}

impl EventBody {
    /// The kind as it stands in the log.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::JobCreated { .. } => "job_created",
            Self::StateChanged { .. } => "state_changed",
            Self::Wished { .. } => "wished",
            Self::Extended { .. } => "extended",
            Self::SandboxRequested { .. } => "sandbox_requested",
            Self::SandboxReady { .. } => "sandbox_ready",
            Self::SandboxLost { .. } => "sandbox_lost",
            Self::SandboxStopped { .. } => "sandbox_stopped",
            Self::SandboxContinued { .. } => "sandbox_continued",
            Self::CallStarted { .. } => "call_started",
            Self::CallOutput { .. } => "call_output",
            Self::CallOutputDropped { .. } => "call_output_dropped",
            Self::CallDisplay { .. } => "call_display",
            Self::CallEnded(_) => "call_ended",
            Self::Checkpoint { .. } => "checkpoint",
            Self::Egress(_) => "egress",
            Self::ArtifactStored(_) => "artifact_stored",
            Self::Note { .. } => "note",
            Self::TurnStarted(_) => "turn_started",
            Self::ModelAnswered(_) => "model_answered",
            Self::PlanChanged { .. } => "plan_changed",
            Self::NoteKept { .. } => "note_kept",
            Self::MessageReceived { .. } => "message_received",
            Self::RequestOpened(_) => "request_opened",
            Self::RequestAnswered { .. } => "request_answered",
            Self::BudgetChanged { .. } => "budget_changed",
            Self::AgentTold(_) => "agent_told",
            Self::ContextChanged(_) => "context_changed",
            Self::AnswerLost(_) => "answer_lost",
            Self::SummaryMade(_) => "summary_made",
            Self::AgentFinished(_) => "agent_finished",
            Self::TakenOver { .. } => "taken_over",
            Self::HandedBack { .. } => "handed_back",
            Self::McpChanged(_) => "mcp_changed",
            Self::FilesChanged(_) => "files_changed",
            Self::PersonActed(_) => "person_acted",
            Self::AuditStored(_) => "audit_stored",
            Self::PayloadDropped { .. } => "payload_dropped",
        }
    }
}

/// Whose write it is: the owner's, which counts only while it owns the job, or anybody's (a wish).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// The owner of this generation.
    Owner(Generation),
    /// A caller of the API.
    Anybody,
}
