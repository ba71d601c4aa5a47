//! What a job is: its identifiers, its specification, its events, the state machine, and the views that are computed from
//! the events.
//!
//! Everything here is data and pure functions: nothing is asynchronous or opens a file. Types that
//! belong to a part with behaviour (a plan of the agent, a connection of the egress proxy, a limit of a sandbox) come from
//! that part's crate.

mod access;
mod event;
mod ids;
mod invalid;
mod json;
mod kernels;
mod log_text;
#[cfg(test)]
mod properties;
mod spec;
mod state;
mod step;
mod view;
mod workspace_path;

pub use access::{
    Actor, Key, KeyId, KeyLimits, KeyUse, NewKey, NewSharedLink, Role, SessionId, ShareId, SharedLink,
    Submitter,
};
pub use event::{
    Artifact, CALLS, CallEnd, CallRef, CallStatus, ContentDigest, ControlRequest, Event, EventBody,
    EventKind, Fence, FileChange, FilesChanged, KernelUse, Kinds, LostKernel, McpChange, McpServers,
    McpState, NewEvent, OUTPUT, Shown, ShownError, StoredFile, Unenforced, UserAction, UserActionKind,
    WITHOUT_OUTPUT,
};
pub use ids::{Generation, JobId, Sequence};
pub use invalid::{InvalidField, invalid};
pub use json::keywords;
pub use json::{
    EgressSchema, SERDE_WORDING, edit_distance, explain, host, json_syntax_error, object, plain_parser_error,
    read, read_object, required_object, with_whole_numbers,
};
pub use kernels::{KERNEL_EVENTS, KERNEL_LOST, KernelHistory, KernelSelector, LoggedCell, Names, Replay};
pub use log_text::{describe_event, format_time, what_happened};
pub use spec::{
    AppliedCeilings, CeilingRules, Ceilings, DesktopSettings, EgressSettings, GitSource, JobDefaults,
    JobSecret, JobSpec, LONGEST_S, LONGEST_WAIT_S, MAX_ALLOWANCE, MAX_LABELS, MAX_SECRET_NAME, MAX_STEPS,
    MAX_TASK_BYTES, MOST_SECRETS, NewAllowance, NewDesktop, NewJob, NewLimits, NewSecret, OnKernelLoss,
    OnLoss, SHORTEST_S, Work, at_most, check_agent, check_egress, check_environment, check_git, check_mcp,
    check_seconds, check_step, check_step_timeouts, cpu_millis, is_secret_name, within,
};
pub use state::{IllegalTransition, JobState, Outcome, Transition};
pub use step::{
    BrowserInput, CellCode, ElementChoice, Expectation, GuiInput, Language, MAX_SCRIPT_BYTES, ReadFormat,
    STEP_TOOLS, Step, StepCall, StepInput, StepOptions, StepTool, StepToolInfo, TOOL_NAMES,
    check_kernel_name, check_script, step_tool, tool_effect,
};
pub use view::{
    AgentView, AnsweredEgress, Changed, EgressView, Holder, JobFilter, JobKind, JobPage, JobView, RuleStatus,
    StepStatus, StepView, call_of_step, is_agent_call, step_of_call,
};
pub use workspace_path::{SKIPPED_FOLDERS, workspace_path};
