//! Code in live notebook kernels: cells that API callers run, what they display, and the kernels themselves.

use std::time::Duration;

use job::{CallStatus, InvalidField, JobId, Language, Shown, UserAction, UserActionKind, check_kernel_name};
use protocol::{KernelAction, KernelState, KernelStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::core::Orchestrator;
use crate::core::kernel_guard::RefusedCell;
use crate::driver::cells::program_of_code;
use crate::error::OrchestratorError;
use crate::live::calls::{end_started_call, run_started_call};
use crate::live::exec_request::ExecRequest;

/// Runs code in a live kernel of a job that runs.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CodeRequest {
    /// The code.
    pub code: String,
    /// `python` (when absent) or `typescript`.
    pub language: Option<String>,
    /// The name of a kernel, or `python` or `typescript`, instead of a language.
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
    /// A remark on how it ran, such as that the kernel was restarted.
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

/// The kernel with this name. `python` and `typescript` stand for the language if no kernel has that name.
fn select_kernel(name: &str, kernels: &[KernelStatus]) -> Result<Language, InvalidField> {
    match name {
        _ if kernels.iter().any(|kernel| kernel.name == name) => Ok(Language::Kernel(name.to_owned())),
        "python" => Ok(Language::Python),
        "typescript" => Ok(Language::Typescript),
        _ => {
            let names: Vec<String> =
                kernels.iter().map(|kernel| format!("{} ({})", kernel.name, kernel.language)).collect();
            let there =
                if names.is_empty() { "it has none".into() } else { format!("it has {}", names.join(", ")) };
            let problem = format!("this image has no kernel called `{name}`; {there}");
            Err(InvalidField { field: "kernel".into(), problem })
        }
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
        let language = self.check_kernel_exists(id, language).await?;
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

    /// Refuses a kernel that the sandbox does not have.
    async fn check_kernel_exists(
        &self,
        id: JobId,
        language: Language,
    ) -> Result<Language, OrchestratorError> {
        let Language::Kernel(name) = &language else { return Ok(language) };
        let (live, client) = self.reach(id).await?;
        // The guest lists the kernels of the usual home directory only.
        if live.spec.environment.contains_key("HOME") {
            return Ok(language);
        }
        Ok(select_kernel(name, &client.kernels().await?)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, language: &str) -> KernelStatus {
        KernelStatus {
            name: name.into(),
            display_name: name.into(),
            language: language.into(),
            state: KernelState::NotStarted,
            cells: 0,
        }
    }

    #[test]
    fn kernels_are_selected_by_name_and_then_by_language() {
        let image = [kernel("deno", "typescript"), kernel("python3", "python")];
        let select = |name: &str| select_kernel(name, &image);
        assert_eq!(select("deno"), Ok(Language::Kernel("deno".into())));
        assert_eq!(select("python"), Ok(Language::Python));
        assert_eq!(select("typescript"), Ok(Language::Typescript));
        assert_eq!(
            select_kernel("python", &[kernel("python", "python")]),
            Ok(Language::Kernel("python".into()))
        );
        let refused = select("cobol").unwrap_err();
        assert_eq!(refused.field, "kernel");
        assert!(refused.problem.contains("`cobol`; it has deno (typescript), python3 (python)"), "{refused}");
        assert!(select_kernel("r", &[]).unwrap_err().problem.ends_with("it has none"));
    }
}
