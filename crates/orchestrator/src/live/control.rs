//! User control of a running job: messages, pause, resume, takeover and handback, answers to input requests.

use agent::{Budget, InputAnswer, InputRequest, Notice, NoticeCode};
use job::{
    ControlRequest, Event, EventBody, Fence, InvalidField, JobId, JobState, JobView, Kinds, NewEvent,
    Sequence, invalid, is_agent_call, step_tool,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::core::Orchestrator;
use crate::driver::STUCK;
use crate::error::OrchestratorError;
use crate::live::handback_summary::{MAX_NAMED, Snapshot, describe_changes};
use crate::live::takeover_lock::{SandboxCaller, digest_of_token, new_token};
use crate::scheduler::start_driver;

pub(crate) const MAX_MESSAGE_BYTES: usize = 100 * 1024;
/// The maximum length of a name, in characters.
pub(crate) const MAX_NAME: usize = 100;

/// Something that a person says to the agent.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// What; the agent reads it in its next turn.
    pub text: String,
}

/// Who takes a sandbox over.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Takeover {
    /// A name for others to see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Who hands a sandbox back.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Handback {
    /// Even if another user holds it, for a holder who is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

#[derive(Debug)]
pub struct TakenOver {
    pub view: JobView,
    /// Token that the holder's clients present. Returned only once.
    pub token: String,
}

impl Orchestrator {
    /// Sends a message to the agent of a job. A job that is paused because its agent is stuck resumes.
    ///
    /// # Errors
    /// The job is over or has no agent, or the message is empty.
    pub async fn message(&self, id: JobId, message: Message) -> Result<JobView, OrchestratorError> {
        if message.text.trim().is_empty() || message.text.len() > MAX_MESSAGE_BYTES {
            return Err(invalid("text", format!("must have 1 to {MAX_MESSAGE_BYTES} bytes")).into());
        }
        let before = self.agent_job(id).await?;
        let resumes = before.state == JobState::Paused
            && before.code.as_deref() == Some(STUCK)
            && before.control_request.is_none();
        let mut events: Vec<NewEvent> = vec![EventBody::MessageReceived { text: message.text }.into()];
        if resumes {
            events.push(EventBody::ControlRequested { request: ControlRequest::Resume }.into());
        }
        self.append_user_events_if(id, events, |view| match &view.agent {
            Some(agent) if agent.finished.is_some() => Err(wrong_state(view, "its agent has finished")),
            _ => Ok(()),
        })
        .await?;
        if resumes { self.attend(id, &before).await } else { Ok(self.core.store.job(id).await?) }
    }

    /// Asks a job to pause before its next call.
    ///
    /// # Errors
    /// The job is over.
    pub async fn pause(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        let view = self.unfinished_job(id).await?;
        if view.control_request.is_some() {
            return Ok(view);
        }
        self.tell(id, vec![EventBody::ControlRequested { request: ControlRequest::Pause }.into()]).await?;
        self.attend(id, &view).await
    }

    /// Asks a job to continue, optionally with a new budget.
    ///
    /// # Errors
    /// The job is not paused, or the budget is invalid.
    pub async fn resume(&self, id: JobId, budget: Option<Budget>) -> Result<JobView, OrchestratorError> {
        let view = self.unfinished_job(id).await?;
        let waits = view.state == JobState::Paused || view.control_request == Some(ControlRequest::Pause);
        if !waits {
            return Err(wrong_state(&view, "it is not paused"));
        }
        let mut events: Vec<NewEvent> = Vec::new();
        if let Some(new) = budget {
            new.check().map_err(|(field, problem)| invalid(format!("budget.{field}"), problem))?;
            let Some(agent) = &view.agent else {
                return Err(invalid("budget", "belongs to a job with `task`; steps have no agent").into());
            };
            // A new budget means more spending, so the daily limit of the job's key must not be used up.
            self.check_spending(self.core.store.spec(id).await?.submitter.as_ref()).await?;
            events.push(EventBody::BudgetChanged { budget: agent.budget.overridden_by(new) }.into());
        }
        events.push(EventBody::ControlRequested { request: ControlRequest::Resume }.into());
        self.tell(id, events).await?;
        self.attend(id, &view).await
    }

    /// The open input requests of a job.
    pub async fn requests(&self, id: JobId) -> Result<Vec<InputRequest>, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        let mut requests = view.agent.map(|agent| agent.requests).unwrap_or_default();
        requests.extend(view.egress.requests);
        Ok(requests)
    }

    /// Answers an input request.
    ///
    /// # Errors
    /// There is no such request, or the answer does not fit it.
    pub async fn answer(
        &self,
        id: JobId,
        request: &str,
        answer: InputAnswer,
    ) -> Result<JobView, OrchestratorError> {
        let open = self.requests(id).await?;
        let missing = || OrchestratorError::NoRequest { job: id, request: request.to_owned() };
        let asked = open.iter().find(|open| open.id == request).ok_or_else(missing)?;
        answer.check(asked).map_err(|unfit| invalid(unfit.field, unfit.problem))?;
        let event = EventBody::InputAnswered { id: request.to_owned(), answer: Some(answer) };
        self.tell(id, vec![event.into()]).await
    }

    /// Hands the sandbox of a job to a user: the agent pauses before its next call.
    ///
    /// # Errors
    /// The job has no agent or no sandbox now, or another user holds the sandbox.
    pub async fn takeover(&self, id: JobId, takeover: Takeover) -> Result<TakenOver, OrchestratorError> {
        let by = takeover.by.unwrap_or_else(|| "a person".to_owned());
        if by.trim().is_empty() || by.chars().count() > MAX_NAME {
            return Err(invalid("by", format!("must have 1 to {MAX_NAME} characters")).into());
        }
        self.job_without_holder(id).await?;
        let (_, client) = self.reach(id).await?;
        let snapshot = Snapshot::take(&client).await?;
        // Of two concurrent takeovers only the first may succeed, so check again under the lock.
        let _turn = self.core.holding.lock().await;
        self.job_without_holder(id).await?;
        let path = self.core.folder.job(id).join("takeover.json");
        let text = serde_json::to_vec(&snapshot).unwrap_or_default();
        tokio::fs::write(&path, text)
            .await
            .map_err(OrchestratorError::io(format!("writing {}", path.display())))?;
        let token = new_token();
        let view =
            self.tell(id, vec![EventBody::TakenOver { by, lock: digest_of_token(&token) }.into()]).await?;
        self.publish_holder(&view);
        Ok(TakenOver { view, token })
    }

    /// Returns the job if no user holds its sandbox.
    async fn job_without_holder(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        let view = self.agent_job(id).await?;
        match view.agent.as_ref().and_then(|agent| agent.taken_over_by.clone()) {
            Some(by) => Err(OrchestratorError::TakenOver { job: id, by }),
            None => Ok(view),
        }
    }

    /// Publishes the holder, so that requests to the sandbox are checked against it.
    fn publish_holder(&self, view: &JobView) {
        if let Some(live) = self.core.live.get(view.job_id) {
            live.holder.send_replace(view.agent.as_ref().and_then(|agent| agent.holder.clone()));
        }
    }

    /// Returns the sandbox to the agent and tells it what changed.
    ///
    /// # Errors
    /// No user holds the sandbox, or another one does.
    pub async fn handback(
        &self,
        id: JobId,
        caller: &SandboxCaller,
        handback: &Handback,
    ) -> Result<JobView, OrchestratorError> {
        let _turn = self.core.holding.lock().await;
        let view = self.agent_job(id).await?;
        let Some(holder) = view.agent.as_ref().and_then(|agent| agent.holder.clone()) else {
            return Err(wrong_state(&view, "it is not taken over"));
        };
        if !handback.force && !caller.is(&holder) {
            return Err(OrchestratorError::TakenOver { job: id, by: holder.by });
        }
        let by = holder.by.clone();
        let path = self.core.folder.job(id).join("takeover.json");
        let before: Option<Snapshot> =
            tokio::fs::read(&path).await.ok().and_then(|text| serde_json::from_slice(&text).ok());
        let after = match self.reach(id).await {
            Ok((_, client)) => Some(Snapshot::take(&client).await?),
            Err(_) => None,
        };
        let commands = self.commands_since(id, holder.since).await?;
        let text = describe_changes(&by, before.as_ref().zip(after.as_ref()), &commands);
        let events = vec![
            EventBody::AgentNotified(Notice { code: NoticeCode::HandedBack, text }).into(),
            EventBody::HandedBack { by }.into(),
        ];
        let view = self.tell(id, events).await?;
        self.publish_holder(&view);
        let _ = tokio::fs::remove_file(&path).await;
        Ok(view)
    }

    /// Describes what users ran and did since an event. Reads the log page by page.
    async fn commands_since(&self, id: JobId, since: Sequence) -> Result<Vec<String>, OrchestratorError> {
        let mut commands: Vec<String> = Vec::new();
        let mut take = |events: Vec<Event>| {
            for event in events.iter().filter(|event| !is_call_of_agent(event)) {
                if let EventBody::CallStarted { tool, input, .. } = &event.body
                    && let Some(words) = action(tool, input)
                {
                    commands.push(words);
                }
            }
            // The message to the agent is bounded, so what is kept for it is too.
            commands.truncate(MAX_NAMED + 1);
        };
        self.core.store.each_page(id, Kinds::All, since, &mut take).await?;
        Ok(commands)
    }

    /// Records a user's action in the log of a job, and returns the job afterwards.
    async fn tell(&self, id: JobId, events: Vec<NewEvent>) -> Result<JobView, OrchestratorError> {
        self.append_user_events(id, events).await?;
        Ok(self.core.store.job(id).await?)
    }

    /// Records a user's action in the log of a job; through the job's driver, if it has one.
    pub(crate) async fn append_user_events(
        &self,
        id: JobId,
        events: Vec<NewEvent>,
    ) -> Result<(), OrchestratorError> {
        self.append_user_events_if(id, events, |_| Ok(())).await
    }

    /// Like [`Self::append_user_events`], unless `check` refuses. The job's driver appends nothing in between.
    pub(crate) async fn append_user_events_if(
        &self,
        id: JobId,
        events: Vec<NewEvent>,
        check: impl FnOnce(&JobView) -> Result<(), OrchestratorError> + Send,
    ) -> Result<(), OrchestratorError> {
        let events = events.into_iter().map(|event| event.with_actor(self.actor())).collect();
        match self.core.live.get(id) {
            Some(live) => drop(live.recorder.append_now_if(events, check).await?),
            None => {
                check(&self.core.store.job(id).await?)?;
                self.core.store.append(id, Fence::Anybody, events).await?;
                // A driver may have started in the meantime.
                if let Some(live) = self.core.live.get(id) {
                    live.recorder.catch_up().await?;
                }
            }
        }
        Ok(())
    }

    /// Starts a driver for a queued or paused job that has none, so that it pauses or resumes at once.
    async fn attend(&self, id: JobId, before: &JobView) -> Result<JobView, OrchestratorError> {
        if matches!(before.state, JobState::Queued | JobState::Paused) && !self.core.live.contains(id) {
            start_driver(&self.core, id).await?;
        }
        Ok(self.core.store.job(id).await?)
    }

    async fn unfinished_job(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        if view.state.is_over() {
            return Err(wrong_state(&view, "it has ended"));
        }
        Ok(view)
    }

    async fn agent_job(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        let view = self.unfinished_job(id).await?;
        if view.agent.is_none() {
            return Err(InvalidField {
                field: "id".into(),
                problem: "the job has steps and no agent".into(),
            }
            .into());
        }
        Ok(view)
    }
}

fn is_call_of_agent(event: &Event) -> bool {
    event.call.as_ref().is_some_and(|call| is_agent_call(&call.id))
}

/// Describes a user's call for the agent.
fn action(tool: &str, input: &serde_json::Value) -> Option<String> {
    let field = |name: &str| input[name].as_str().map(ToOwned::to_owned);
    match tool {
        "exec" => field("command").or_else(|| Some(input["argv"].to_string())),
        "terminal" => Some("a shell on a terminal".into()),
        _ if step_tool(tool).is_some_and(|tool| tool.is_cell) => {
            field("code").map(|code| format!("{tool}: {code}"))
        }
        "gui" => field("action").map(|action| format!("on the desktop: {action}")),
        _ => None,
    }
}

pub(crate) fn wrong_state(view: &JobView, problem: &str) -> OrchestratorError {
    OrchestratorError::WrongState { job: view.job_id, state: view.state, problem: problem.to_owned() }
}
