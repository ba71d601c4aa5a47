//! `plan`: the task list. With `approve_plan`, a person must accept the first plan and may edit it.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::{APPROVAL_TIMEOUT_MS, request_id};
use crate::conversation::Reply;
use crate::event::{AgentEvent, Author, ToolEnd};
use crate::host::{Effect, Stopped};
use crate::input_request::{PersonRequest, RequestKind};
use crate::plan::{Plan, PlanItem, PlanStatus};
use crate::tools::{CallContext, Tool, ToolFlow, ToolOutput};

pub(super) struct PlanTool;

/// The whole plan.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// All points in order, those that are done included.
    #[serde(alias = "steps", alias = "plan", deserialize_with = "read_items")]
    items: Vec<PlanItem>,
}

/// Also accepts items that are plain strings.
fn read_items<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PlanItem>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum ItemOrText {
        Item(PlanItem),
        Text(String),
    }
    let items = Vec::<ItemOrText>::deserialize(deserializer)?;
    Ok(items
        .into_iter()
        .map(|item| match item {
            ItemOrText::Item(item) => item,
            ItemOrText::Text(text) => PlanItem { text, status: PlanStatus::Pending },
        })
        .collect())
}

impl Tool for PlanTool {
    const NAME: &'static str = "plan";
    const DESCRIPTION: &'static str = "Writes the plan: a short list of points, each with a status. Call it first, and \
        again whenever a point is done or the plan changes; always give the whole list.";
    type Input = Input;

    fn effect(&self) -> Effect {
        Effect::Changes
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let plan = Plan { items: input.items };
        if let Err(problem) = plan.check() {
            return Ok(ToolEnd::malformed(format!("plan: {problem}")).into());
        }
        if !call.settings.approve_plan
            || call.conversation.is_plan_accepted() && call.conversation.request_of(call.id).is_none()
        {
            return Ok(changed(plan, Author::Agent, "the plan is kept"));
        }
        Ok(match call.conversation.request_of(call.id) {
            None => ToolFlow::Wait(PersonRequest {
                id: request_id(call.conversation),
                kind: RequestKind::Plan,
                call: call.id.to_owned(),
                text: "Is this plan right? Accept it, edit it, or say what to change.".into(),
                options: Vec::new(),
                plan: Some(plan),
                command: None,
                egress: None,
                deadline_ms: Some(call.host.now_ms().saturating_add(APPROVAL_TIMEOUT_MS)),
            }),
            Some((request, Reply::Open)) => ToolFlow::Wait(request.clone()),
            Some((_, Reply::TimedOut)) => {
                ToolEnd::failed("nobody accepted the plan in time; call finish with outcome failed").into()
            }
            Some((_, Reply::Answered(answer))) if answer.is_accepted() => {
                let comment =
                    answer.text.as_deref().map_or(String::new(), |text| format!(". They say: {text}"));
                match &answer.plan {
                    Some(edited) => {
                        let text = format!(
                            "a person has edited the plan; this is it now:\n{}{comment}",
                            edited.to_text()
                        );
                        changed(edited.clone(), Author::Person, &text)
                    }
                    None => changed(plan, Author::Agent, &format!("the plan is accepted{comment}")),
                }
            }
            Some((_, Reply::Answered(answer))) => ToolEnd::failed(format!(
                "the plan was not accepted: {}. Write another one",
                answer.text.as_deref().unwrap_or("no reason given")
            ))
            .into(),
        })
    }
}

fn changed(plan: Plan, by: Author, text: &str) -> ToolFlow {
    let events = vec![AgentEvent::PlanChanged { plan, by }];
    ToolFlow::Done(ToolOutput { end: ToolEnd::done(text), events })
}
