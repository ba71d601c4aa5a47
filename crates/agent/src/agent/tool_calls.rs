//! Runs the tool calls of an answer: read-only calls in parallel, the others one after another.

use std::time::{Duration, Instant};

use context::output_cap::{self, Limits};
use futures::channel::oneshot;
use futures::future::try_join_all;
use model::ToolCall;

use super::admission::Admission;
use super::{Agent, RunOutcome};
use crate::conversation::{OpenCall, Stage, result_tokens};
use crate::event::{AgentEvent, ToolEnd};
use crate::host::{Effect, Host, Stopped};
use crate::input_request::InputRequest;
use crate::tools::{self, CallContext, CallStart, ToolFlow, ToolOutput};

/// Maximum number of parallel calls.
const MAX_PARALLEL: usize = 8;
/// How long running calls may take to return after the job's working time is over. After that they stay open in the
/// log.
const GRACE: Duration = Duration::from_secs(10);

enum Outcome {
    /// Not recorded yet.
    Ended(ToolEnd, Vec<AgentEvent>),
    /// The work is over unless a message came meanwhile. Not recorded yet.
    Finished(ToolEnd, Vec<AgentEvent>),
    Waiting(InputRequest),
}

impl Agent {
    /// Runs the next calls. Returns `Some` if the job must wait.
    pub(super) async fn run_calls(&mut self, host: &dyn Host) -> Result<Option<RunOutcome>, Stopped> {
        let open: Vec<OpenCall> = self.conversation.open_calls().cloned().collect();
        let group = match open.iter().take_while(|call| self.is_read_only(&call.call)).count() {
            0 => 1,
            count => count.min(MAX_PARALLEL),
        };
        // Calls that were already started are completed; new ones need remaining budget.
        let is_new = open.first().is_some_and(|call| call.stage == Stage::Waiting);
        let left = self.conversation.budget().tool_calls_left(self.conversation.spent());
        if is_new && left == 0 {
            return Ok(self.budget_ending(host));
        }
        if is_new && self.time_left(host).is_some_and(|left| left.is_zero()) {
            return Ok(Some(self.time_is_over(host)));
        }
        let group = group.min(usize::try_from(left).unwrap_or(usize::MAX).max(1));
        let running = self.run_group(host, &open[..group.min(open.len())]);
        let outcomes = match self.time_left(host) {
            None => running.await?,
            // An abandoned call continues when the job does, like one whose server was killed.
            Some(left) => match tokio::time::timeout(left.saturating_add(GRACE), running).await {
                Ok(outcomes) => outcomes?,
                Err(_) => return Ok(Some(self.time_is_over(host))),
            },
        };
        let mut waiting = None;
        for (outcome, call) in outcomes.into_iter().zip(&open) {
            match outcome {
                Outcome::Ended(..) => {}
                Outcome::Waiting(request) => waiting = waiting.or(Some(RunOutcome::Waiting(request))),
                Outcome::Finished(end, events) => {
                    self.record_finish(host, &call.call.id, end, events).await?
                }
            }
        }
        Ok(waiting)
    }

    /// Runs calls in parallel. Their results are recorded in the order of the calls, whichever ends first.
    ///
    /// All calls are polled together, also while one waits for its turn or records its result: a host may hold a lock
    /// between two polls of a call.
    async fn run_group(&self, host: &dyn Host, calls: &[OpenCall]) -> Result<Vec<Outcome>, Stopped> {
        let mut turn_of_next = None;
        let running = calls.iter().map(|call| {
            let (recorded, next) = oneshot::channel::<()>();
            let turn = turn_of_next.replace(next);
            async move {
                let mut outcome = self.run_call(host, call).await?;
                if let Some(turn) = turn {
                    // The sender is dropped once the result of the call before is recorded.
                    let _ = turn.await;
                }
                if let Outcome::Ended(end, events) = &mut outcome {
                    let (end, events) = (std::mem::take(end), std::mem::take(events));
                    self.record_end(host, &call.call.id, end, events).await?;
                }
                drop(recorded);
                Ok(outcome)
            }
        });
        try_join_all(running.collect::<Vec<_>>()).await
    }

    /// Records the end of a `finish`, unless a message came while its acceptance commands ran.
    async fn record_finish(
        &mut self,
        host: &dyn Host,
        call: &str,
        end: ToolEnd,
        events: Vec<AgentEvent>,
    ) -> Result<(), Stopped> {
        self.apply_new_events(host).await?;
        if self.conversation.unread_messages() > 0 {
            let duration_ms = end.duration_ms;
            return self
                .record_end(host, call, ToolEnd { duration_ms, ..ToolEnd::failed(tools::UNREAD) }, Vec::new())
                .await;
        }
        self.record_end(host, call, end, events).await
    }

    async fn record_end(
        &self,
        host: &dyn Host,
        call: &str,
        mut end: ToolEnd,
        events: Vec<AgentEvent>,
    ) -> Result<(), Stopped> {
        end.tokens = Some(result_tokens(call, &end.text));
        let mut new = self.summaries().finished();
        new.push(AgentEvent::CallEnded { call: call.to_owned(), end });
        new.extend(events);
        host.record(new).await
    }

    /// Calls that need approval run one after another, so that only one request is open at a time.
    fn is_read_only(&self, call: &ToolCall) -> bool {
        !self.needs_approval(call)
            && self.find_tool(&call.name).is_some_and(|tool| tool.effect() == Effect::ReadOnly)
    }

    async fn run_call(&self, host: &dyn Host, open: &OpenCall) -> Result<Outcome, Stopped> {
        let call = &open.call;
        let started = Instant::now();
        let admitted = match self.admit(host, call) {
            Admission::Run(tool) => Ok(tool),
            Admission::Refuse(end) => Err(end),
            // A call is logged as started only after it was approved: a started call is not started again.
            Admission::Ask(request) => return self.wait_for(host, call, *request).await,
        };
        if open.stage == Stage::Waiting {
            let event = AgentEvent::CallStarted {
                call: call.id.clone(),
                tool: call.name.clone(),
                input: call.arguments.clone(),
            };
            host.record(vec![event]).await?;
        }
        let flow = match admitted {
            Ok(tool) => {
                let before = self.files_before(host, open).await?;
                let context = CallContext {
                    id: &call.id,
                    host,
                    conversation: &self.conversation,
                    settings: &self.settings,
                    toolbox: &self.toolbox,
                    limits: self.limits,
                    begun: if open.stage == Stage::Waiting { CallStart::Now } else { CallStart::Before },
                    recall: &self.recall,
                    time_left: self.time_left(host),
                };
                let mut flow = tool.run(call.arguments.clone(), &context).await?;
                self.name_changed_files(host, &call.name, before, &mut flow).await?;
                flow
            }
            Err(end) => (*end).into(),
        };
        match flow {
            ToolFlow::Done(ToolOutput { mut end, events }) => {
                end.duration_ms = duration_ms(open.stage, started.elapsed(), host.now_ms());
                self.cap(host, call, &mut end).await?;
                if events.iter().any(|event| matches!(event, AgentEvent::Finished(_))) {
                    return Ok(Outcome::Finished(end, events));
                }
                Ok(Outcome::Ended(end, events))
            }
            ToolFlow::Wait(request) => self.wait_for(host, call, request).await,
        }
    }

    /// Stores an output that is too large for the log and leaves the model its head, its tail and how to read the
    /// rest.
    async fn cap(&self, host: &dyn Host, call: &ToolCall, end: &mut ToolEnd) -> Result<(), Stopped> {
        let limits = Limits::for_budget(self.conversation.engine().policy().budget);
        if limits.fit(&end.text) {
            return Ok(());
        }
        let (text, whole) = host.store_text(std::mem::take(&mut end.text)).await?;
        let giving = format!("giving event `{}` and the lines", call.id);
        end.text = output_cap::preview(&text, &whole, limits, &giving);
        end.whole = Some(whole);
        Ok(())
    }

    /// Opens a request for a person unless it is already open.
    async fn wait_for(
        &self,
        host: &dyn Host,
        call: &ToolCall,
        request: InputRequest,
    ) -> Result<Outcome, Stopped> {
        if self.conversation.request_of(&call.id).is_none() {
            host.record(vec![AgentEvent::InputRequested(request.clone())]).await?;
        }
        Ok(Outcome::Waiting(request))
    }
}

/// How long a call took in all. One that an earlier server started counts from then, unless the clock was set back.
fn duration_ms(stage: Stage, elapsed: Duration, now_ms: i64) -> u64 {
    let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    match stage {
        Stage::Started { time_ms } => {
            elapsed_ms.max(u64::try_from(now_ms.saturating_sub(time_ms)).unwrap_or_default())
        }
        Stage::Waiting | Stage::Ended => elapsed_ms,
    }
}
