//! Calls that API callers run in the sandbox of a running job. They are logged like the job's own calls.

use std::sync::Arc;
use std::time::Duration;

use job::{
    CallEnd, CallRef, CallStatus, ContentDigest, EventBody, InvalidField, JobId, JobState, at_most,
    check_environment,
};
use protocol::{Exec, ExecOutcome, GuestClient, Program};
use sandbox::Usage;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::core::Orchestrator;
use crate::core::live_jobs::LiveJob;
use crate::driver::call::{self, Begin, Followed, OneLink, key_of};
use crate::driver::{Captured, Evidence, LimitHints, OutputSink, environment, explain_end};
use crate::error::OrchestratorError;
use crate::live::exec_request::{ExecReply, ExecRequest};

/// Bytes of each output stream that a response contains.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// If the caller gives no timeout.
pub(crate) const DEFAULT_TIMEOUT_S: f64 = 60.0;
/// Maximum timeout of a call over the API.
pub(crate) const MAX_TIMEOUT_S: f64 = 3600.0;
pub(crate) const MIN_TIMEOUT_S: f64 = 0.001;
/// Longer than the guest needs to kill a process that ignores signals.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for a link that is being opened.
const LINK_TIMEOUT: Duration = Duration::from_secs(30);

impl Orchestrator {
    /// Runs a command in the sandbox of a job and waits until it ends.
    ///
    /// # Errors
    /// The job has no sandbox now, or the request is invalid.
    pub async fn exec(&self, id: JobId, request: ExecRequest) -> Result<ExecReply, OrchestratorError> {
        let timeout_s = self.effective_call_timeout(request.timeout_s)?;
        let request = ExecRequest { timeout_s: Some(timeout_s), ..request };
        let begun = self.begin_call(id, &request).await?;
        let (call, end, captured) = run_started_call(begun, timeout_s).await?;
        Ok(reply(call, end, &captured))
    }

    /// The timeout of a call: the requested one, or the default lowered to the caller's ceiling.
    pub(crate) fn effective_call_timeout(&self, asked: Option<f64>) -> Result<f64, InvalidField> {
        let ceilings = self.caller_ceilings();
        let Some(seconds) = asked else {
            let default = Duration::from_secs_f64(DEFAULT_TIMEOUT_S);
            return Ok(at_most(default, ceilings.effective().step_timeout_s).as_secs_f64());
        };
        check_timeout(seconds)?;
        ceilings.check_seconds("timeout_s", "step_timeout_s", seconds, |set| set.step_timeout_s)?;
        Ok(seconds)
    }

    /// Checks a request, connects to the sandbox and logs the start of the call.
    pub(crate) async fn begin_call(
        &self,
        id: JobId,
        request: &ExecRequest,
    ) -> Result<StartedCall, OrchestratorError> {
        let program = check_request(request)?;
        self.log_call_start(id, request, program, ("exec", input_of(request))).await
    }

    /// Connects to the sandbox and logs the start of a call to `tool` with `input`.
    pub(crate) async fn log_call_start(
        &self,
        id: JobId,
        request: &ExecRequest,
        program: Program,
        (tool, input): (&str, Value),
    ) -> Result<StartedCall, OrchestratorError> {
        let asked = request.timeout_s.map(|seconds| self.effective_call_timeout(Some(seconds)));
        let timeout_s = asked.transpose()?;
        let (live, client) = self.reach(id).await?;
        let call = CallRef { id: format!("api-{}", Uuid::now_v7().simple()), attempt: 1 };
        let mut variables = environment(&live.spec, &call);
        variables.extend(request.environment.clone());
        let exec = Exec {
            key: key_of(&call),
            program,
            environment: variables,
            directory: request.cwd.clone(),
            stdin: request.stdin.clone(),
            keep_stdin_open: false,
            terminal: None,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
            timeout_ms: timeout_s.map(|seconds| (seconds * 1000.0).ceil() as u64),
            kill_grace_ms: 2000,
        };
        let started = EventBody::CallStarted { step: None, tool: tool.to_owned(), input };
        live.recorder.append_now(vec![started.of(&call).with_actor(self.actor())]).await?;
        Ok(StartedCall { live, client, call, exec })
    }

    /// A job that has a driver now, and the client of its guest.
    pub(crate) async fn reach(&self, id: JobId) -> Result<(LiveJob, GuestClient), OrchestratorError> {
        if let Some(shortage) = self.core.host_disk.shortage()
            && self.core.live.contains(id)
        {
            return Err(shortage);
        }
        let is_open = |client: &GuestClient| !client.link().is_closed();
        if let Some(live) = self.core.live.get(id)
            && let Some(client) = live.guest.borrow().clone().filter(is_open)
        {
            live.used.now();
            return Ok((live.clone(), client));
        }
        let view = self.core.store.job(id).await?;
        if view.state == JobState::Running {
            // Right after a server restart the job is being resumed and its link reopened, so wait a moment.
            let reached = async {
                let live = self.core.live.wait_for(id).await;
                let mut guest = live.guest.subscribe();
                let client = tokio::select! {
                    client = guest.wait_for(|client| client.as_ref().is_some_and(is_open)) => client.ok()?.clone()?,
                    away = live.recorder.waiting().backend_wait_started() => return Some(Err(away)),
                };
                Some(Ok((live, client)))
            };
            if let Ok(Some(reached)) = tokio::time::timeout(LINK_TIMEOUT, reached).await {
                let (live, client) = reached?;
                live.used.now();
                return Ok((live, client));
            }
        }
        Err(OrchestratorError::WrongState {
            job: id,
            state: view.state,
            problem: "it has no running sandbox".into(),
        })
    }
}

/// Runs a call whose start is logged, and logs its end.
pub(crate) async fn run_started_call(
    StartedCall { live, client, call, exec }: StartedCall,
    timeout_s: f64,
) -> Result<(CallRef, CallEnd, Captured), OrchestratorError> {
    let _in_use = live.used.begin();
    let captured = Captured::new(MAX_ANSWER_BYTES);
    let mut sink = OutputSink::new(Arc::clone(&live.recorder), call.clone(), None, captured);
    let patience = Duration::from_secs_f64(timeout_s) + ANSWER_TIMEOUT;
    let (key, mut host) = (exec.key.clone(), OneLink::new(client));
    let running = call::run(&mut host, &key, Begin::Start(Box::new(exec)), &mut sink);
    let followed = tokio::time::timeout(patience, running).await;
    let end = match followed {
        Ok(followed) => end_of(followed, timeout_s, &mut sink),
        Err(_) => interrupted("the guest did not answer in time"),
    };
    let kernel = end.kernel.as_ref().map(|kernel| kernel.name.as_str());
    let refused = live.recorder.refusals_of(&call, kernel).await;
    let end = end.with_note(refused);
    sink.finish(end.clone()).await?;
    Ok((call, end, sink.into_captured()))
}

/// Ends a call whose start is logged without sending it to the guest.
pub(crate) async fn end_started_call(
    StartedCall { live, call, .. }: StartedCall,
    end: CallEnd,
) -> Result<(CallRef, CallEnd, Captured), OrchestratorError> {
    live.recorder.append_now(vec![EventBody::CallEnded(end.clone()).of(&call)]).await?;
    Ok((call, end, Captured::new(0)))
}

/// A call whose start is logged and that may be sent to the guest.
pub(crate) struct StartedCall {
    pub(crate) live: LiveJob,
    pub(crate) client: GuestClient,
    pub(crate) call: CallRef,
    pub(crate) exec: Exec,
}

/// How a call ended that was followed for the log. The last piece of its output is still to be written, see
/// [`OutputSink::finish`].
pub(crate) fn end_of(
    followed: Result<Followed, OrchestratorError>,
    timeout_s: f64,
    sink: &mut OutputSink,
) -> CallEnd {
    match followed.and_then(|followed| followed.outcome().map_err(OrchestratorError::from)) {
        Ok(outcome) => end_within(&outcome, timeout_s, sink.limit_hints()),
        Err(error) => interrupted(&error.to_string()),
    }
}

fn end_within(outcome: &ExecOutcome, timeout_s: f64, hints: LimitHints) -> CallEnd {
    explain_end(&Evidence {
        outcome,
        expectation: None,
        text_found: true,
        hints,
        before: Usage::default(),
        after: Usage::default(),
        timeout_s,
    })
}

/// How a process without a timeout ended.
pub(crate) fn plain_end(outcome: &ExecOutcome) -> CallEnd {
    end_within(outcome, 0.0, LimitHints::default())
}

pub(crate) fn interrupted(reason: &str) -> CallEnd {
    CallEnd {
        status: CallStatus::Interrupted,
        code: Some("interrupted".into()),
        reason: Some(reason.to_owned()),
        ..CallEnd::default()
    }
}

fn reply(call: CallRef, end: CallEnd, captured: &Captured) -> ExecReply {
    ExecReply {
        call: call.id,
        status: end.status,
        exit_code: end.exit_code,
        stdout: String::from_utf8_lossy(&captured.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&captured.stderr).into_owned(),
        truncated: captured.truncated,
        duration_ms: end.duration_ms,
        code: end.code,
        reason: end.reason,
        note: end.note,
    }
}

pub(crate) fn check_timeout(seconds: f64) -> Result<f64, InvalidField> {
    if (MIN_TIMEOUT_S..=MAX_TIMEOUT_S).contains(&seconds) {
        return Ok(seconds);
    }
    let problem = format!("{seconds} is not between {MIN_TIMEOUT_S} and {MAX_TIMEOUT_S}");
    Err(InvalidField { field: "timeout_s".into(), problem })
}

/// What the log keeps of a request: the names of variables but not their values, and the size and digest of stdin.
fn input_of(request: &ExecRequest) -> Value {
    let mut input = json!({ "command": request.command, "argv": request.argv });
    if let Some(directory) = &request.cwd {
        input["cwd"] = json!(directory);
    }
    if !request.environment.is_empty() {
        input["environment"] = request.environment.keys().map(String::as_str).collect();
    }
    if let Some(stdin) = &request.stdin {
        let digest = ContentDigest::of(stdin.as_bytes());
        input["stdin"] = json!({ "bytes": digest.bytes(), "sha256": digest.sha256() });
    }
    input
}

/// Validates what to run, where and with which variables.
fn check_request(request: &ExecRequest) -> Result<Program, InvalidField> {
    check_environment(&request.environment)?;
    if request.cwd.as_ref().is_some_and(|directory| directory.contains('\0')) {
        return Err(InvalidField { field: "cwd".into(), problem: "has a NUL character".into() });
    }
    program_of(request)
}

fn program_of(request: &ExecRequest) -> Result<Program, InvalidField> {
    let invalid = |field: &str, problem: &str| InvalidField { field: field.into(), problem: problem.into() };
    match (&request.command, &request.argv) {
        (Some(_), Some(_)) => Err(invalid("command", "give either `command` or `argv`, not both")),
        (None, None) => Err(invalid("command", "give `command` (a command line) or `argv` (a list)")),
        (Some(command), None) if command.trim().is_empty() => Err(invalid("command", "is empty")),
        (Some(command), None) if command.contains('\0') => Err(invalid("command", "has a NUL character")),
        (Some(command), None) => Ok(Program::Shell(command.clone())),
        (None, Some(argv)) if argv.is_empty() => Err(invalid("argv", "is empty; give a program")),
        (None, Some(argv)) if argv.iter().any(|part| part.contains('\0')) => {
            Err(invalid("argv", "has a NUL character"))
        }
        (None, Some(argv)) => Ok(Program::Arguments(argv.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_variables_and_nul_in_the_directory_are_checked() {
        let request = || ExecRequest { command: Some("true".into()), ..ExecRequest::default() };
        let variable = |name: &str, value: &str| ExecRequest {
            environment: [(name.to_owned(), value.to_owned())].into(),
            ..request()
        };
        let refused = |request: &ExecRequest| check_request(request).unwrap_err().field;
        for name in ["", "0", "a-b", "A=B", "ü"] {
            assert_eq!(refused(&variable(name, "x")), "environment", "{name}");
        }
        assert_eq!(refused(&variable("NAME", "a\0b")), "environment.NAME");
        assert_eq!(refused(&ExecRequest { cwd: Some("a\0b".into()), ..request() }), "cwd");
        assert!(check_request(&variable("_name1", "x")).is_ok());
    }

    #[test]
    fn values_of_variables_and_stdin_are_not_logged() {
        let request = ExecRequest {
            command: Some("make".into()),
            cwd: Some("src".into()),
            environment: [("TOKEN".to_owned(), "value-1".to_owned())].into(),
            stdin: Some("value-2".into()),
            ..ExecRequest::default()
        };
        let input = input_of(&request);
        assert!(!input.to_string().contains("value-"), "{input}");
        assert_eq!((&input["command"], &input["cwd"]), (&json!("make"), &json!("src")));
        assert_eq!(input["environment"], json!(["TOKEN"]));
        let sha256 = ContentDigest::of(b"value-2").sha256();
        assert_eq!(input["stdin"], json!({"bytes": 7, "sha256": sha256}));
        let plain = ExecRequest { command: Some("ls".into()), ..ExecRequest::default() };
        assert_eq!(input_of(&plain), json!({"command": "ls", "argv": null}));
    }
}
