//! The job engine, independent of HTTP.
//!
//! A job is an append-only log of events in a [`store::Store`], which the caller opens. One task, the [`driver`], owns a
//! job: it reads the log, decides on the next action and appends an event before it acts. The job's view
//! ([`job::JobView`]) is derived from the log, so a server that was killed continues where it stopped.
//!
//! Modules use only modules further up in this list:
//!
//! - `clock`, `error`, `data_folder`, `metrics`
//! - `recorder`: appends the events of one job
//! - `core`: state that all parts share, and the handle [`Orchestrator`]
//! - `egress`: the network of one job
//! - `driver`: runs one job
//! - `scheduler`, `pool`: which job runs next, and sandboxes that are ready for it
//! - `access`, `audit`, `intake`, `live`, `upkeep`: operations for callers, and background tasks
//! - `orchestrator`: starts and stops all of it

mod access;
mod audit;
mod clock;
mod core;
mod data_folder;
mod driver;
mod egress;
mod error;
mod intake;
mod live;
mod metrics;
mod orchestrator;
mod pool;
mod recorder;
mod scheduler;
mod upkeep;

pub use access::{DayUsage, DefaultsView, KeyUsage, Session, StoredKeys};
pub use agent::{Budget, InputAnswer, InputRequest, Plan, SummaryMode};
pub use core::Orchestrator;
pub use core::keyring::check_limits;
pub use core::live_tokens::{Cursor, Delta, Snapshot};
pub use core::oidc_users::OIDC_ID_PREFIX;
pub use core::seal::SealPurpose;
pub use core::server_secret::{SecretSource, ServerSecret};
pub use core::settings::{ContextSettings, OnShutdown, Settings};
pub use core::token::Token;
pub use data_folder::DataFolder;
pub use data_folder::result_files::ResultFile;
pub use egress::{Download, NetworkReport, NetworkTotals};
pub use error::OrchestratorError;
pub use intake::bare_sandbox::{NewSandbox, SandboxView};
pub use intake::form_upload::Afterwards;
pub use intake::schema::constrain_schemas;
pub use intake::submission::{Accepted, Bringing, Repeated, Submission};
pub use intake::unpack::ArchiveKind;
pub use live::cells::{CodeReply, CodeRequest, KernelAnswer};
pub use live::context_view::{ContextSegment, ContextView, EventSpan};
pub use live::control::{Handback, Message, TakenOver, Takeover};
pub use live::desktop::GuiAnswer;
pub use live::exec_request::{ExecReply, ExecRequest};
pub use live::files::{ByteChunks, FileContent, FileItem, FileListing};
pub use live::stats::{SandboxStats, StatsHistory, StatsLimits, StatsSample};
pub use live::streams::{
    ExecStreamOptions, LiveControl, LiveExec, LiveInput, LiveOutput, LiveUpdate, PortStream,
};
pub use live::takeover_lock::{Gate, SandboxCaller};
pub use live::time_limit::ExtendedJob;
pub use metrics::Metrics;
pub use model::{ChosenModel, ModelStatus, ModelTest, NewModelChoice};
pub use orchestrator::ReadyState;
pub use store::{JobAudit, SignedHead, StoreError};
pub use upkeep::backup::{BackupReport, back_up};
pub use upkeep::restore::restore;
