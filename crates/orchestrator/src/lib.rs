//! Jobs without HTTP.
//!
//! A job is an append-only log of events in the [`store`]. One task drives a job: it reads the log, does the next
//! thing, writes down first what it is about to do. Whatever is known of a job ([`JobView`]) is computed from its log,
//! so a server that was killed goes on where it was.

mod agent_log;
mod answers;
mod backup;
#[cfg(test)]
mod backup_tests;
mod calls;
mod clock;
mod core;
mod driver;
mod error;
mod event;
mod files;
mod folder;
mod ids;
mod last_use;
mod live;
mod metrics;
mod orchestrator;
mod pool;
mod reconcile;
mod recorder;
mod request;
mod restore;
mod retention;
mod scheduler;
mod session;
mod state;
mod step;
pub mod store;
mod streams;
mod uploads;
mod view;

pub use agent_log::format_time;
pub use answers::{
    Accepted, ExecReply, ExecRequest, JobFilter, JobKind, JobPage, ReadyState, Repeated, Submission,
};
pub use backup::{BackupReport, back_up};
pub use core::{OnShutdown, Settings};
pub use error::OrchestratorError;
pub use event::{
    Artifact, CallEnd, CallRef, CallStatus, Event, EventBody, Fence, NewEvent, Unenforced, Wish,
};
pub use files::{ByteChunks, FileContent, FileItem, FileListing};
pub use folder::DataFolder;
pub use ids::{Generation, JobId, Sequence};
pub use metrics::Metrics;
pub use orchestrator::Orchestrator;
pub use request::{InvalidField, JobDefaults, JobSpec, NewJob, NewLimits, OnLoss, Work, workspace_path};
pub use restore::restore;
pub use session::{NewSandbox, SandboxView};
pub use state::{Happening, IllegalChange, JobState, Outcome};
pub use step::{Expectation, Step, StepOptions, StepTool, TOOL_NAMES};
pub use streams::{LiveControl, LiveExec, LiveInput, LiveOutput, LiveUpdate, PortStream, SandboxStats, Talk};
pub use uploads::ArchiveKind;
pub use view::{Changed, JobView, StepStatus, StepView, call_of_step};
