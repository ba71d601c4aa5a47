//! Clones the repository that a job starts from. Runs inside the sandbox, so that the job's egress policy applies.

use agent::{ExecStart, ProcessRequest};
use job::{CallEnd, CallRef, CallStatus, EventBody, WITHOUT_OUTPUT};
use protocol::{CallKey, Program};

use super::agent::AgentHost;
use super::{Driver, DriverExit};
use crate::error::OrchestratorError;

/// Id of the call that clones.
const CALL: &str = "setup-git";
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(900);

/// Clones into a separate folder and then copies everything over, so that uploaded files stay.
const SCRIPT: &str = r#"
set -eu
url=$1; revision=$2
rm -rf /tmp/caisson-clone
git clone --quiet ${revision:+--no-checkout} -- "$url" /tmp/caisson-clone
if [ -n "$revision" ]; then
  cd /tmp/caisson-clone
  git checkout --quiet "$revision" -- 2>/dev/null || git checkout --quiet "$revision" || {
    git fetch --quiet origin "$revision" && git checkout --quiet FETCH_HEAD
  }
fi
cp -a /tmp/caisson-clone/. /workspace/
rm -rf /tmp/caisson-clone
cd /workspace && git log -1 --format='at %h %s'
"#;

impl Driver {
    /// Clones the repository of the job, once for each sandbox that starts empty.
    pub(super) async fn clone_repository(&mut self) -> Result<(), DriverExit> {
        let Some(source) = self.spec.git.clone() else { return Ok(()) };
        let view = self.recorder.view().await;
        // A checkpoint contains the clone.
        if view.checkpoint_steps.is_some() {
            return Ok(());
        }
        let log = self.core.store.all_events(self.recorder.job(), WITHOUT_OUTPUT, 0).await?;
        let attempt = view.losses + 1;
        let call = CallRef { id: CALL.into(), attempt };
        let of_call = || log.iter().filter(|event| event.call.as_ref() == Some(&call));
        if let Some(EventBody::CallEnded(end)) =
            of_call().map(|event| &event.body).find(|body| matches!(body, EventBody::CallEnded(_)))
        {
            return verdict(end, &source.url);
        }
        if of_call().next().is_none() {
            let input = serde_json::to_value(&source).unwrap_or_default();
            let started = EventBody::CallStarted { step: None, tool: "git_clone".into(), input };
            self.recorder.record(started.of(&call)).await?;
        }
        let arguments =
            ["bash", "-c", SCRIPT, "git_clone", &source.url, source.revision.as_deref().unwrap_or_default()];
        let order = ProcessRequest {
            call: CALL.into(),
            key: CallKey::new(CALL, attempt),
            start: Some(ExecStart {
                timeout: Some(TIMEOUT),
                ..ExecStart::program(Program::Arguments(arguments.map(ToOwned::to_owned).into()))
            }),
            from_chunk: 0,
            wait: TIMEOUT + std::time::Duration::from_secs(30),
        };
        let host = AgentHost::new(self, &log).await?;
        let report = host.run(order).await?;
        let problem = match &report.end {
            Some(end) => end.problem.clone(),
            None => Some("it did not end".into()),
        };
        let end = CallEnd {
            status: if problem.is_none() { CallStatus::Succeeded } else { CallStatus::Failed },
            exit_code: report.end.as_ref().and_then(|end| end.exit_code),
            code: problem.is_some().then(|| "clone_failed".to_owned()),
            reason: problem.map(|problem| format!("{problem}: {}", report.output.trim())),
            duration_ms: report.duration_ms,
            ..CallEnd::default()
        };
        self.recorder.record(EventBody::CallEnded(end.clone()).of(&call)).await?;
        verdict(&end, &source.url)
    }
}

fn verdict(end: &CallEnd, url: &str) -> Result<(), DriverExit> {
    if end.status == CallStatus::Succeeded {
        return Ok(());
    }
    let reason = end.reason.clone().unwrap_or_default();
    Err(DriverExit::Failed(OrchestratorError::WorkspaceSource { why: format!("cloning {url}: {reason}") }))
}
