//! `plan`: the task list. With `approve_plan`, a person must accept the first plan and may edit it.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::{APPROVAL_TIMEOUT_MS, request_id};
use crate::conversation::Reply;
use crate::event::{AgentEvent, Author, ToolEnd};
use crate::host::Stopped;
use crate::input_request::{InputRequest, RequestKind};
use crate::plan::{Plan, PlanItem, PlanStatus};
use crate::tools::{CallContext, Tool, ToolFlow, ToolOutput, ToolRole};

pub(super) struct PlanTool;

/// The whole plan.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// All points in order, those that are done included.
    #[serde(alias = "steps", alias = "plan", alias = "todos", deserialize_with = "read_items")]
    items: Vec<PlanItem>,
}

/// Also accepts items that are plain strings, and items with the names of other programs.
fn read_items<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PlanItem>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum ItemOrText {
        Item(NamedItem),
        Text(String),
    }
    #[derive(Deserialize)]
    struct NamedItem {
        #[serde(alias = "content", alias = "step", alias = "title", alias = "task")]
        text: String,
        #[serde(default)]
        status: PlanStatus,
    }
    let items = Vec::<ItemOrText>::deserialize(deserializer)?;
    Ok(items
        .into_iter()
        .map(|item| match item {
            ItemOrText::Item(NamedItem { text, status }) => PlanItem { text, status },
            ItemOrText::Text(text) => PlanItem { text, status: PlanStatus::Pending },
        })
        .collect())
}

impl Tool for PlanTool {
    const NAME: &'static str = "plan";
    const DESCRIPTION: &'static str = "Writes the plan: a short list of items, each with a status. Call it first, and \
        again whenever an item is done or the plan changes; always give the whole list.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        is_control: true,
        other_names: &[
            "todowrite",
            "todo",
            "todos",
            "updateplan",
            "writetodos",
            "managetodolist",
            "tasktracker",
            "todoread",
        ],
        ..ToolRole::OPTIONAL
    };

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let plan = Plan { items: input.items };
        if let Err(problem) = plan.check() {
            return Ok(ToolEnd::malformed(format!("plan: {problem}")).into());
        }
        if !call.settings.approve_plan
            || call.conversation.is_plan_accepted() && call.conversation.request_of(call.id).is_none()
        {
            return Ok(changed(plan, Author::Agent, "the plan is saved"));
        }
        Ok(match call.conversation.request_of(call.id) {
            None => ToolFlow::Wait(InputRequest {
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
                ToolEnd::failed("no user accepted the plan in time; call finish with outcome failed").into()
            }
            Some((_, Reply::Answered(answer))) if answer.is_accepted() => {
                let comment =
                    answer.text.as_deref().map_or(String::new(), |text| format!(". They say: {text}"));
                match &answer.plan {
                    Some(edited) => {
                        let text = format!(
                            "the user has edited the plan. It is now:\n{}{comment}",
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plans_of_other_programs_are_accepted() {
        for input in [
            json!({"items": [{"text": "look", "status": "done"}, "build"]}),
            json!({"todos": [
                {"id": "1", "content": "look", "status": "completed", "activeForm": "Looking"},
                {"id": "2", "content": "build", "status": "pending", "priority": "high"}
            ]}),
            json!({"explanation": "so", "plan": [{"step": "look", "status": "completed"}, {"step": "build"}]}),
        ] {
            let plan = Plan { items: serde_json::from_value::<Input>(input).unwrap().items };
            assert_eq!(plan.to_text(), "1. [x] look\n2. [ ] build\n");
        }
    }
}
