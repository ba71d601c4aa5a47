//! The job engine, independent of HTTP.
//!
//! A job is an append-only log of events in the [`store`]. One task, the driver, owns a job: it reads the log,
//! decides on the next action and appends an event before it acts. The job view ([`JobView`]) is derived from the
//! log, so a server that was killed continues where it stopped.

mod access;
mod agent_log;
mod agent_view;
mod api_types;
mod audit;
mod backend_watch;
mod backup;
#[cfg(test)]
mod backup_tests;
mod bare_sandbox;
mod browser;
mod calls;
mod clock;
mod clock_watch;
mod code;
mod context_view;
mod control;
mod core;
mod data_folder;
mod desktop;
mod desktop_script;
mod draft_files;
mod driver;
mod egress;
mod error;
mod event;
mod files;
mod form_upload;
mod handback_summary;
mod host_disk;
mod ids;
mod images;
mod kernels;
mod last_use;
mod live;
mod live_tokens;
mod mcp_view;
mod metrics;
mod model_watch;
mod models;
mod notebook;
mod operator_wait;
mod orchestrator;
mod pool;
mod reconcile;
mod recorder;
mod refused_connections;
mod request;
mod request_serde;
mod restore;
mod retention;
mod retry_backoff;
mod scheduler;
mod state;
mod step;
pub mod store;
mod streams;
mod takeover_lock;
mod tar_extension;
mod terminals;
mod unpack;
mod upload_limits;
mod uploads;
mod usage;
mod user_actions;
mod view;
mod workspace_path;
mod zip_entry_count;
mod zip_listing;

pub use access::{
    Actor, AppliedCeilings, CeilingRules, Ceilings, Key, KeyId, KeyLimits, KeyUse, NewKey, NewSharedLink,
    OIDC_ID_PREFIX, Role, SealPurpose, Session, SessionId, ShareId, SharedLink, StoredKeys, Submitter, Token,
    check_limits, cpu_millis,
};
pub use agent::{Budget, PersonAnswer, PersonRequest, Plan, SummaryMode};
pub use agent_log::{format_time, what_happened};
pub use agent_view::AgentView;
pub use api_types::{
    Accepted, Bringing, ExecReply, ExecRequest, JobFilter, JobKind, JobPage, ReadyState, Repeated, Submission,
};
pub use audit::{
    AuditReport, ExternalRecords, FileAudit, FileState, HeadsChecked, JobAudit, PUBLIC_KEY_FILE, SignedHead,
    StoredFile, Tombstone, TrustedKeys, export_deletions, export_heads, find_job_id, user_actions_of,
    verify_audit,
};
pub use backup::{BackupReport, back_up};
pub use bare_sandbox::{NewSandbox, SandboxView};
pub use browser::{BrowserInput, ElementChoice, ReadFormat};
pub use code::{CodeReply, CodeRequest, KernelAnswer, Shown, ShownError};
pub use context_view::{ContextSegment, ContextView, EventSpan};
pub use control::{Handback, Message, TakenOver, Takeover};
pub use core::{ContextSettings, OnShutdown, Settings};
pub use data_folder::DataFolder;
pub use desktop::{DesktopSettings, GuiAnswer, GuiInput, NewDesktop};
pub use egress::{
    AnsweredEgress, Download, EgressView, NetworkReport, NetworkTotals, RuleStatus, SecretSource,
    ServerSecret,
};
pub use error::OrchestratorError;
pub use event::{
    Artifact, CallEnd, CallRef, CallStatus, ControlRequest, Event, EventBody, Fence, NewEvent, Unenforced,
};
pub use files::{ByteChunks, FileContent, FileItem, FileListing};
pub use form_upload::Afterwards;
pub use ids::{Generation, JobId, Sequence};
pub use kernels::{KernelUse, LostKernel, OnKernelLoss};
pub use live_tokens::{Cursor, Delta, Snapshot};
pub use mcp_view::{McpChange, McpServers, McpState};
pub use metrics::Metrics;
pub use model::Survey as ModelSurvey;
pub use orchestrator::Orchestrator;
pub use request::agent::GitSource;
pub use request::egress::{EgressSettings, JobSecret, NewAllowance, NewSecret, is_secret_name};
pub use request::{InvalidField, JobDefaults, JobSpec, NewJob, NewLimits, OnLoss, Work, workspace_path};
pub use restore::restore;
pub use state::{IllegalTransition, JobState, Outcome, Transition};
pub use step::{Expectation, Step, StepOptions, StepTool, TOOL_NAMES};
pub use streams::{
    ExecStreamOptions, LiveControl, LiveExec, LiveInput, LiveOutput, LiveUpdate, PortStream, SandboxStats,
};
pub use takeover_lock::{Gate, Holder, Visitor};
pub use unpack::ArchiveKind;
pub use usage::{DayUsage, DefaultsView, KeyUsage};
pub use user_actions::{UserAction, UserActionKind};
pub use view::{Changed, JobView, StepStatus, StepView, call_of_step};
