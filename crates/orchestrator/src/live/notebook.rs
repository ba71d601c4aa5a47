//! The notebook server of a sandbox: JupyterLab, started on first use, reachable only through the link.

use std::collections::BTreeMap;

use job::{CallRef, InvalidField, JobFilter, JobId, JobKind, JobSpec, JobState, JobView, KeyId};
use protocol::{Endpoint, Readiness, ServiceName, ServiceSpec};

use crate::core::Orchestrator;
use crate::driver::environment;
use crate::error::OrchestratorError;
use crate::live::streams::PortStream;

/// The socket that JupyterLab listens on. It is not reachable from outside the sandbox, and inside everything belongs
/// to the agent anyway.
const SOCKET: &str = "/tmp/.caisson-jupyter.sock";
/// JupyterLab is stopped after it was unused for this long. The kernels belong to the guest and keep running.
const IDLE_MS: u64 = 10 * 60 * 1000;
const START_MS: u64 = 180_000;
/// The directory of JupyterLab in the image. Appended to `PATH`, after everything that a job may have added.
const PROGRAMS: &str = "/opt/jupyter/bin";
/// Uses the agent's kernels if the image supports it.
const START: &str = "\
command -v jupyter-lab >/dev/null || { echo 'this image has no JupyterLab' >&2; exit 127; }
for file in /opt/jupyter/lib/python3*/site-packages/caisson_provisioner.py; do
  [ -e \"$file\" ] && export JUPYTER_DEFAULT_PROVISIONER_NAME=caisson
done
rm -f \"$1\"
exec jupyter-lab --no-browser --ServerApp.sock=\"$1\" --ServerApp.sock_mode=0666 \\
  --ServerApp.root_dir=/workspace --ServerApp.allow_remote_access=True --ServerApp.use_redirect_file=False \\
  --IdentityProvider.token= --ServerApp.password= --ContentsManager.allow_hidden=True \\
  --LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate";

fn service(spec: &JobSpec) -> Result<ServiceSpec, InvalidField> {
    let name = ServiceName::new("jupyter")
        .map_err(|error| InvalidField { field: "service".into(), problem: error.to_string() })?;
    let mut variables: BTreeMap<String, String> =
        environment(spec, &CallRef { id: "jupyter".into(), attempt: 1 });
    if let Some(path) = variables.get_mut("PATH") {
        *path = format!("{path}:{PROGRAMS}");
    }
    let program = ["/bin/sh", "-c", START, "jupyter", SOCKET].map(str::to_owned).to_vec();
    Ok(ServiceSpec {
        name,
        program,
        environment: variables,
        directory: None,
        ready: Readiness::Accepts(Endpoint::Unix(SOCKET.to_owned())),
        start_timeout_ms: START_MS,
        idle_ms: Some(IDLE_MS),
        requires: Vec::new(),
    })
}

impl Orchestrator {
    /// Connects to the notebook server in the sandbox of a job, and starts it first if needed.
    ///
    /// # Errors
    /// The image has no JupyterLab, or the job has no sandbox now.
    pub async fn open_notebook_server(&self, id: JobId) -> Result<PortStream, OrchestratorError> {
        let (live, client) = self.reach(id).await?;
        let service = service(&live.spec)?;
        let stream = client.open_service(service, Endpoint::Unix(SOCKET.to_owned())).await?;
        Ok(PortStream::new(stream, client, &live))
    }

    /// The newest running job or bare sandbox, of everybody or of one key.
    pub async fn newest_running(
        &self,
        submitter: Option<KeyId>,
    ) -> Result<Option<JobView>, OrchestratorError> {
        let mut newest: Option<JobView> = None;
        for kind in [JobKind::Job, JobKind::Sandbox] {
            let filter = JobFilter {
                kind,
                states: vec![JobState::Running],
                submitter: submitter.clone(),
                limit: 1,
                ..JobFilter::default()
            };
            let found = self.jobs(filter).await?.jobs.into_iter().next();
            newest = newest.into_iter().chain(found).max_by_key(|job| job.job_id);
        }
        Ok(newest)
    }
}
