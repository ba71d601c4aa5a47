//! Runs the tool calls of an answer: read-only calls in parallel, the others one after another.

use std::time::{Duration, Instant};

use context::output_cap::{self, Limits};
use futures::future::try_join_all;
use model::ToolCall;

use super::admission::Admission;
use super::{Agent, Ending};
use crate::conversation::{OpenCall, Stage, result_tokens};
use crate::event::{AgentEvent, ToolEnd};
use crate::host::{Effect, Host, Stopped};
use crate::input_request::PersonRequest;
use crate::tools::{Begun, CallContext, ToolFlow, ToolOutput};

/// Maximum number of parallel calls.
const MAX_PARALLEL: usize = 8;
/// How long running calls may take to return after the job's working time is over. After that they stay open in the
/// log.
const GRACE: Duration = Duration::from_secs(10);

enum Outcome {
    Ended,
    Waiting(PersonRequest),
}

impl Agent {
    /// Runs the next calls. Returns `Some` if the job must wait.
    pub(super) async fn run_calls(&mut self, host: &dyn Host) -> Result<Option<Ending>, Stopped> {
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
        let running = open.iter().take(group).map(|call| self.run_call(host, call));
        let outcomes = match self.time_left(host) {
            None => try_join_all(running).await?,
            // An abandoned call continues when the job does, like one whose server was killed.
            Some(left) => match tokio::time::timeout(left.saturating_add(GRACE), try_join_all(running)).await
            {
                Ok(outcomes) => outcomes?,
                Err(_) => return Ok(Some(self.time_is_over(host))),
            },
        };
        let waiting = outcomes.into_iter().find_map(|outcome| match outcome {
            Outcome::Waiting(request) => Some(Ending::Waiting(request)),
            Outcome::Ended => None,
        });
        Ok(waiting)
    }

    /// Calls that need approval run one after another, so that only one request is open at a time.
    fn is_read_only(&self, call: &ToolCall) -> bool {
        !self.needs_approval(call)
            && self.toolbox.find(&call.name).is_some_and(|tool| tool.effect() == Effect::ReadOnly)
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
                let context = CallContext {
                    id: &call.id,
                    host,
                    conversation: &self.conversation,
                    settings: &self.settings,
                    limits: self.limits,
                    begun: if open.stage == Stage::Waiting { Begun::Now } else { Begun::Before },
                    recall: &self.recall,
                    time_left: self.time_left(host),
                };
                tool.run(call.arguments.clone(), &context).await?
            }
            Err(end) => (*end).into(),
        };
        match flow {
            ToolFlow::Done(ToolOutput { mut end, mut events }) => {
                end.duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.cap(host, call, &mut end).await?;
                end.tokens = Some(result_tokens(&call.id, &end.text));
                events.insert(0, AgentEvent::CallEnded { call: call.id.clone(), end });
                host.record(events).await?;
                Ok(Outcome::Ended)
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
        request: PersonRequest,
    ) -> Result<Outcome, Stopped> {
        if self.conversation.request_of(&call.id).is_none() {
            host.record(vec![AgentEvent::InputRequested(request.clone())]).await?;
        }
        Ok(Outcome::Waiting(request))
    }
}
