//! Code in live notebook kernels: cells that API callers run, what they display, and the kernels themselves.

use std::time::Duration;

use protocol::{Cell, Display, DisplayKind, KernelAction, KernelChoice, KernelState, Program};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::api_types::ExecRequest;
use crate::calls::{end_started_call, run_started_call};
use crate::error::OrchestratorError;
use crate::event::CallStatus;
use crate::ids::JobId;
use crate::kernels::{KernelSelector, RefusedCell};
use crate::orchestrator::Orchestrator;
use crate::request::{InvalidField, check_kernel_name};
use crate::user_actions::{UserAction, UserActionKind};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    Typescript,
    Kernel(String),
}

impl Language {
    pub(crate) fn wanted(&self) -> KernelSelector<'_> {
        match self {
            Self::Python => KernelSelector::Language("python"),
            Self::Typescript => KernelSelector::Language("typescript"),
            Self::Kernel(name) => KernelSelector::Name(name),
        }
    }
}

/// The program that the guest runs for a cell.
pub(crate) fn program_of_code(language: &Language, code: &str) -> Program {
    let (kernel, otherwise) = match language {
        Language::Python => {
            let process = vec!["python3".to_owned(), "-".to_owned()];
            (KernelChoice::Language("python".into()), Some(process))
        }
        Language::Typescript => (KernelChoice::Language("typescript".into()), None),
        Language::Kernel(name) => (KernelChoice::Name(name.clone()), None),
    };
    Program::Cell(Cell { kernel, code: code.to_owned(), otherwise })
}

/// Something that a cell has shown beside text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Shown {
    /// `result`, `data`, `update`, `clear` or `error`.
    #[schema(value_type = String, example = "result")]
    #[serde(rename = "display")]
    pub kind: DisplayKind,
    /// For who reads text alone.
    #[serde(default)]
    pub text: String,
    /// The same thing in several forms, by media type; binary ones are base64.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub data: Map<String, Value>,
    /// What the kernel says about the forms.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// Names it for updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_id: Option<String>,
    /// The kernel's number of the cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_count: Option<u64>,
    /// The exception, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ShownError>,
}

/// An exception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShownError {
    /// Its type.
    pub name: String,
    /// What it says.
    pub message: String,
    /// As the kernel prints it, colours included.
    pub traceback: Vec<String>,
}

impl From<Display> for Shown {
    fn from(display: Display) -> Self {
        Self {
            text: display.text(),
            kind: display.kind,
            data: display.data,
            metadata: display.metadata,
            display_id: display.display_id,
            execution_count: display.execution_count,
            error: display.error.map(|error| ShownError {
                name: error.name,
                message: error.message,
                traceback: error.traceback,
            }),
        }
    }
}

/// Runs code in a live kernel of a job that runs.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CodeRequest {
    /// The code.
    pub code: String,
    /// `python` (when absent) or `typescript`.
    pub language: Option<String>,
    /// The name of a kernel, instead of a language.
    pub kernel: Option<String>,
    /// Interrupts it after so many seconds, 60 when absent.
    pub timeout_s: Option<f64>,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CodeReply {
    /// The call in the job's log.
    pub call: String,
    /// Whether it did what was expected; an exception is a failure.
    pub status: CallStatus,
    /// What it printed; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// What it showed beside text, in order: results, pictures, the exception.
    pub displays: Vec<Shown>,
    /// Whether output was left out; the job's log has more.
    pub truncated: bool,
    /// From start to end.
    pub duration_ms: u64,
    /// Why it did not succeed, for programs: `exception`, `timeout`, `kernel_died`, ...
    pub code: Option<String>,
    /// Why it did not succeed, for people.
    pub reason: Option<String>,
    /// What should be known of how it ran, such as that the kernel was started anew.
    pub note: Option<String>,
}

/// A kernel of a sandbox.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct KernelAnswer {
    /// By which it is called.
    #[schema(example = "python3")]
    pub name: String,
    /// For people.
    pub display_name: String,
    /// In lower case.
    #[schema(example = "python")]
    pub language: String,
    /// `not_started`, `starting`, `idle` or `busy`.
    #[schema(value_type = String, example = "idle")]
    pub state: KernelState,
    /// How many cells it was given since it was started.
    pub cells: u64,
}

fn language_of(request: &CodeRequest) -> Result<Language, InvalidField> {
    let invalid = |field: &str, problem: String| InvalidField { field: field.into(), problem };
    if request.code.trim().is_empty() {
        return Err(invalid("code", "is empty".into()));
    }
    match (&request.language, &request.kernel) {
        (Some(_), Some(_)) => Err(invalid("kernel", "give either `language` or `kernel`, not both".into())),
        (None, Some(kernel)) => check_kernel_name(kernel).map(|()| Language::Kernel(kernel.clone())),
        (None, None) => Ok(Language::Python),
        (Some(language), None) => match language.as_str() {
            "python" => Ok(Language::Python),
            "typescript" => Ok(Language::Typescript),
            other => Err(invalid(
                "language",
                format!("`{other}` is not known; allowed: python, typescript, or name a kernel in `kernel`"),
            )),
        },
    }
}

impl Orchestrator {
    /// Runs a cell in the sandbox of a job and waits until it ends.
    ///
    /// # Errors
    /// The job has no sandbox now, or the request is invalid.
    pub async fn run_code(&self, id: JobId, request: CodeRequest) -> Result<CodeReply, OrchestratorError> {
        let language = language_of(&request)?;
        let timeout_s = self.effective_call_timeout(request.timeout_s)?;
        let program = program_of_code(&language, &request.code);
        let (tool, input) = match &language {
            Language::Python => ("python", json!({"code": request.code, "timeout_s": timeout_s})),
            Language::Typescript => ("typescript", json!({"code": request.code, "timeout_s": timeout_s})),
            Language::Kernel(kernel) => {
                ("code", json!({"kernel": kernel, "code": request.code, "timeout_s": timeout_s}))
            }
        };
        let exec = ExecRequest { timeout_s: Some(timeout_s), ..ExecRequest::default() };
        let refused = self.wait_for_kernel_gate(id, &language, timeout_s).await?;
        let begun = self.log_call_start(id, &exec, program, (tool, input)).await?;
        let (call, end, captured) = match refused {
            None => run_started_call(begun, timeout_s).await?,
            Some(refused) => end_started_call(begun, refused.end()).await?,
        };
        Ok(CodeReply {
            call: call.id,
            status: end.status,
            stdout: String::from_utf8_lossy(&captured.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&captured.stderr).into_owned(),
            displays: captured.shown,
            truncated: captured.truncated,
            duration_ms: end.duration_ms,
            code: end.code,
            reason: end.reason,
            note: end.note,
        })
    }

    /// Why a cell is refused in a job that has lost a sandbox; `None` if it may run. Waits while lost cells are
    /// replayed.
    async fn wait_for_kernel_gate(
        &self,
        id: JobId,
        language: &Language,
        timeout_s: f64,
    ) -> Result<Option<RefusedCell>, OrchestratorError> {
        let (live, _) = self.reach(id).await?;
        let patience = Duration::from_secs_f64(timeout_s);
        if tokio::time::timeout(patience, live.kernels.wait_for_replay()).await.is_err() {
            return Err(OrchestratorError::WrongState {
                job: id,
                state: self.core.store.job(id).await?.state,
                problem: "the cells of a kernel that was lost run again; try again when they have".into(),
            });
        }
        live.kernels.refuse(self.core.store.as_ref(), id, language.wanted(), true).await
    }

    /// The kernels in the sandbox of a job.
    ///
    /// # Errors
    /// The job has no sandbox now.
    pub async fn kernels(&self, id: JobId) -> Result<Vec<KernelAnswer>, OrchestratorError> {
        let (_, client) = self.reach(id).await?;
        let answer = |kernel: protocol::KernelStatus| KernelAnswer {
            name: kernel.name,
            display_name: kernel.display_name,
            language: kernel.language,
            state: kernel.state,
            cells: kernel.cells,
        };
        Ok(client.kernels().await?.into_iter().map(answer).collect())
    }

    /// Interrupts or restarts a kernel.
    ///
    /// # Errors
    /// The kernel is not running, or the job has no sandbox now.
    pub async fn act_on_kernel(
        &self,
        id: JobId,
        name: &str,
        action: KernelAction,
    ) -> Result<(), OrchestratorError> {
        check_kernel_name(name)?;
        let (_, client) = self.reach(id).await?;
        let what = match action {
            KernelAction::Interrupt => UserActionKind::KernelInterrupted,
            KernelAction::Restart => UserActionKind::KernelRestarted,
        };
        let act = async { Ok(client.kernel(name.to_owned(), action).await?) };
        self.audited(id, UserAction::on_named(what, name), act).await
    }
}
