//! The job engine, independent of HTTP.
//!
//! A job is an append-only log of events in the [`store`]. One task, the driver, owns a job: it reads the log,
//! decides on the next action and appends an event before it acts. The job view ([`JobView`]) is derived from the
//! log, so a server that was killed continues where it stopped.

mod access;
mod agent_log;
mod agent_view;
mod answers;
mod archive_end;
mod audit;
mod backend_watch;
mod backup;
#[cfg(test)]
mod backup_tests;
mod browser;
mod calls;
mod clock;
mod clock_watch;
mod code;
mod context_view;
mod control;
mod core;
mod deeds;
mod desktop;
mod desktop_script;
mod draft_files;
mod driver;
mod error;
mod event;
mod figures;
mod files;
mod folder;
mod forms;
mod handback;
mod hold;
mod host_disk;
mod ids;
mod images;
mod kernels;
mod last_use;
mod live;
mod mcp_view;
mod metrics;
mod model_watch;
mod models;
mod notebook;
mod orchestrator;
mod outward;
mod pool;
mod reconcile;
mod recorder;
mod refused;
mod request;
mod request_agent;
mod request_egress;
mod request_mcp;
mod request_steps;
mod restore;
mod retention;
mod scheduler;
mod session;
mod setbacks;
mod speech;
mod state;
mod step;
pub mod store;
mod streams;
mod tar_extension;
mod terminals;
mod unpack;
mod upload_room;
mod uploads;
mod view;
mod waiting;
mod workspace_path;
mod written;
mod zip_listing;

pub use access::{
    Actor, AppliedCeilings, CeilingRules, Ceilings, Key, KeyId, KeyLimits, KeyUse, NewKey, NewSharedLink,
    PERSON_PREFIX, Role, SealedFor, Session, SessionId, ShareId, SharedLink, StoredKeys, Submitter, Token,
    check_limits, cpu_millis,
};
pub use agent::{Budget, PersonAnswer, PersonRequest, Plan, SummaryMode};
pub use agent_log::{format_time, what_happened};
pub use agent_view::AgentView;
pub use answers::{
    Accepted, Bringing, ExecReply, ExecRequest, JobFilter, JobKind, JobPage, ReadyState, Repeated, Submission,
};
pub use audit::{
    AuditReport, FileAudit, FileState, HeadsChecked, JobAudit, Kept, PUBLIC_KEY_FILE, SignedHead, StoredFile,
    Tombstone, TrustedKeys, deeds_of, export_deletions, export_heads, find_audited, verify_audit,
};
pub use backup::{BackupReport, back_up};
pub use browser::{BrowserInput, ElementChoice, ReadFormat};
pub use code::{CodeReply, CodeRequest, KernelAnswer, Shown, ShownError};
pub use context_view::{ContextSegment, ContextView, EventSpan};
pub use control::{Handback, Message, TakenOver, Takeover};
pub use core::{ContextSettings, OnShutdown, Settings};
pub use deeds::{DeedKind, PersonDeed};
pub use desktop::{DesktopSettings, GuiAnswer, GuiInput, NewDesktop};
pub use error::OrchestratorError;
pub use event::{
    Artifact, CallEnd, CallRef, CallStatus, Event, EventBody, Fence, NewEvent, Unenforced, Wish,
};
pub use figures::{DayUsage, DefaultsView, KeyUsage};
pub use files::{ByteChunks, FileContent, FileItem, FileListing};
pub use folder::DataFolder;
pub use forms::Afterwards;
pub use hold::{Gate, Holder, Visitor};
pub use ids::{Generation, JobId, Sequence};
pub use kernels::{KernelUse, LostKernel, OnKernelLoss};
pub use mcp_view::{McpChange, McpServers, McpState};
pub use metrics::Metrics;
pub use model::Survey as ModelSurvey;
pub use orchestrator::Orchestrator;
pub use outward::{
    AnsweredEgress, Download, EgressView, NetworkReport, NetworkTotals, SecretSource, ServerSecret, Standing,
};
pub use request::{InvalidField, JobDefaults, JobSpec, NewJob, NewLimits, OnLoss, Work, workspace_path};
pub use request_agent::GitSource;
pub use request_egress::{JobSecret, NewAllowance, NewSecret, OutwardSettings, is_secret_name};
pub use restore::restore;
pub use session::{NewSandbox, SandboxView};
pub use speech::{Delta, Heard, Said};
pub use state::{Happening, IllegalChange, JobState, Outcome};
pub use step::{Expectation, Step, StepOptions, StepTool, TOOL_NAMES};
pub use streams::{LiveControl, LiveExec, LiveInput, LiveOutput, LiveUpdate, PortStream, SandboxStats, Talk};
pub use unpack::ArchiveKind;
pub use view::{Changed, JobView, StepStatus, StepView, call_of_step};
