//! `python` and `typescript`: run code, in a live kernel if the image has one.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::conversation::duration_note;
use crate::event::{ToolEnd, ToolStatus};
use crate::host::{Capability, CodeExecution, Language, Stopped};
use crate::tools::tool::requested_wait;
use crate::tools::{CallContext, EndedCall, Importance, Tool, ToolFlow, ToolRole};

/// The default time limit.
const DEFAULT_TIMEOUT_S: f64 = 120.0;

/// Python in a live kernel.
pub(super) struct LivePython;
/// Python in a new process for each call, for images without a kernel.
pub(super) struct Python;
pub(super) struct TypeScript;

/// Code to run.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The code.
    #[serde(alias = "source", alias = "script")]
    code: String,
    /// Seconds after which it is ended, 120 when absent, at most 600.
    #[serde(default)]
    timeout_s: Option<f64>,
}

async fn run_code(language: Language, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
    if input.code.trim().is_empty() {
        return Ok(ToolEnd::malformed("`code` is empty").into());
    }
    let request = CodeExecution {
        call: call.id.to_owned(),
        language,
        code: input.code,
        // Not limited to the job's remaining time: code that is still running then continues when the job does.
        timeout: requested_wait(input.timeout_s, DEFAULT_TIMEOUT_S),
    };
    let report = call.host.run_code(request).await?;
    let mut images = Vec::new();
    for image in report.images {
        images.push(call.host.store_image(image).await?);
    }
    // Small models send command lines instead of code.
    let is_command_line = language == Language::Python
        && report.problem.as_ref().is_some_and(|problem| {
            problem.contains("SyntaxError") || report.output.contains("SyntaxError: invalid syntax")
        });
    let mut text = report.output;
    let mut add = |line: String| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text += &line;
    };
    let duration = duration_note(report.duration_ms);
    match (&report.problem, images.len()) {
        (Some(problem), _) => add(format!("[{problem}{duration}]")),
        (None, 0) => add(format!("[done{duration}]")),
        (None, 1) => add(format!("[done, 1 picture{duration}]")),
        (None, count) => add(format!("[done, {count} pictures{duration}]")),
    }
    if is_command_line {
        add("[this tool runs Python code; a command line belongs in `shell`]".into());
    }
    if let Some(note) = report.note {
        add(format!("[{note}]"));
    }
    let status = if report.problem.is_none() { ToolStatus::Done } else { ToolStatus::Failed };
    Ok(ToolEnd { status, text, images, ..ToolEnd::default() }.into())
}

impl Tool for LivePython {
    const NAME: &'static str = Python::NAME;
    const DESCRIPTION: &'static str = "Runs Python code in /workspace and returns what it prints and the value of its last expression; variables and \
        imports persist from call to call. Pictures, also of plots, come back as images. Packages that `pip install` in \
        `shell` has installed can be imported.";
    type Input = Input;
    const ROLE: ToolRole = Python::ROLE;

    fn needs(&self) -> &'static [Capability] {
        &[Capability::PythonKernel]
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        run_code(Language::Python, input, call).await
    }

    fn step(input: Input, _end: &EndedCall<'_>) -> Option<Value> {
        Some(json!({"tool": Self::NAME, "code": input.code}))
    }
}

impl Tool for Python {
    const NAME: &'static str = "python";
    const DESCRIPTION: &'static str = "Runs Python code in /workspace in a new process and returns what it prints. Print what you want to see. Packages \
        that `pip install` in `shell` has installed can be imported.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        importance: Importance::Simple,
        other_names: &[
            "ipython",
            "executeipythoncell",
            "runpython",
            "pythonrepl",
            "jupyter",
            "notebook",
            "codeinterpreter",
            "runcode",
        ],
        ..ToolRole::OPTIONAL
    };

    fn needs(&self) -> &'static [Capability] {
        &[Capability::Python]
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        run_code(Language::Python, input, call).await
    }

    fn step(input: Input, _end: &EndedCall<'_>) -> Option<Value> {
        Some(json!({"tool": Self::NAME, "code": input.code}))
    }
}

impl Tool for TypeScript {
    const NAME: &'static str = "typescript";
    const DESCRIPTION: &'static str =
        "Runs TypeScript code in /workspace and returns what it prints. Print what you want to see.";
    type Input = Input;

    fn needs(&self) -> &'static [Capability] {
        &[Capability::TypeScript]
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        run_code(Language::TypeScript, input, call).await
    }

    fn step(input: Input, _end: &EndedCall<'_>) -> Option<Value> {
        Some(json!({"tool": Self::NAME, "code": input.code}))
    }
}
