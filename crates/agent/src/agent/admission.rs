//! Decides whether a tool call may run: the tool exists, the plan is accepted, and the rules and the user allow it.

use std::sync::Arc;

use model::ToolCall;
use serde_json::Value;

use super::Agent;
use super::meant_tool::meant_tool;
use crate::command_rules::{Approval, Decision, RuleDecision, only_reads};
use crate::conversation::{NOT_REPEATED, Reply, sorted_text};
use crate::event::ToolEnd;
use crate::host::{Effect, Host};
use crate::input_request::{InputRequest, RequestKind};
use crate::tools;
use crate::tools::AnyTool;

/// The refusal of everything else.
const BEFORE_PLAN: &str = "not done: a user must accept your plan first. Until then, read files and run only commands that change \
    nothing, such as `ls`, `wc`, `grep` or `git log`, without redirecting output into files. Then call `plan`";
/// How many characters of the beginning and end of one argument an approval request shows.
const SHOWN_HEAD: usize = 800;
const SHOWN_TAIL: usize = 400;

pub(super) enum Admission<'a> {
    Run(&'a Arc<dyn AnyTool>),
    Refuse(Box<ToolEnd>),
    Ask(Box<InputRequest>),
}

/// A call as the approval request describes it.
struct CallSubject {
    /// `command` or `tool`.
    noun: &'static str,
    /// A command line, or a tool name with its arguments.
    shown: String,
    judgement: RuleDecision,
}

impl Agent {
    pub(super) fn admit(&self, host: &dyn Host, call: &ToolCall) -> Admission<'_> {
        let refuse = |text: String| Admission::Refuse(Box::new(ToolEnd::not_run(text)));
        let Some(tool) = self.find_tool(&call.name) else {
            let names = self.toolbox.names().join(", ");
            let near = meant_tool(call).filter(|meant| self.toolbox.find(meant).is_some());
            let near = near.map_or(String::new(), |meant| format!(" Did you mean `{meant}`?"));
            let text = format!("there is no tool `{}`.{near} The tools are: {names}", call.name);
            return Admission::Refuse(Box::new(ToolEnd::malformed(text)));
        };
        if self.conversation.stuck().blocks(&call.name, &sorted_text(&call.arguments)) {
            return refuse(NOT_REPEATED.into());
        }
        let needs_plan = self.settings.approve_plan && !self.conversation.is_plan_accepted();
        if needs_plan && tool.effect() == Effect::Changes && !is_allowed_before_plan(call) {
            return refuse(BEFORE_PLAN.into());
        }
        let CallSubject { noun, shown, judgement } = self.judge(call);
        let part = judgement.about.filter(|about| *about != shown.trim());
        let part = part.map_or(String::new(), |part| format!("; what it is about: `{}`", shorten(&part)));
        let rule = judgement.rule.map_or(String::new(), |rule| format!(" (rule `{rule}`)"));
        let because = judgement.reason.as_ref().map_or(String::new(), |reason| format!(" Reason: {reason}."));
        let reason = judgement.reason.map_or(String::new(), |reason| format!(": {reason}"));
        match judgement.decision {
            Decision::Allow => Admission::Run(tool),
            Decision::Deny => refuse(format!("not run: this {noun} is not allowed{rule}{reason}{part}")),
            Decision::Ask if self.settings.approval == Approval::Never => Admission::Run(tool),
            Decision::Ask => match self.conversation.request_of(&call.id) {
                Some((_, Reply::Answered(answer))) if answer.is_accepted() => Admission::Run(tool),
                Some((_, Reply::Answered(answer))) => refuse(format!(
                    "not run: the user refused this {noun}: {}",
                    answer.text.as_deref().unwrap_or("no reason given")
                )),
                Some((_, Reply::TimedOut)) => refuse(format!("not run: no user allowed this {noun} in time")),
                Some((request, Reply::Open)) => Admission::Ask(Box::new(request.clone())),
                None => Admission::Ask(Box::new(InputRequest {
                    id: tools::request_id(&self.conversation),
                    kind: RequestKind::Command,
                    call: call.id.clone(),
                    text: format!("May the agent {} this {noun}?{because}", verb(noun)),
                    options: Vec::new(),
                    plan: None,
                    command: Some(shown),
                    egress: None,
                    deadline_ms: Some(host.now_ms().saturating_add(tools::APPROVAL_TIMEOUT_MS)),
                })),
            },
        }
    }

    /// Whether the rules require a person's approval for this call.
    pub(super) fn needs_approval(&self, call: &ToolCall) -> bool {
        self.settings.approval == Approval::Ask && self.judge(call).judgement.decision == Decision::Ask
    }

    /// Judges a call by its tool and, if it runs one, by its command line. The stricter of the two applies.
    fn judge(&self, call: &ToolCall) -> CallSubject {
        let rules = &self.settings.commands;
        // A job can neither continue nor end without the tools that control it.
        let by_tool = match tools::role_of(&call.name).is_control {
            true => RuleDecision::allowed(),
            false => rules.decide_tool(&call.name),
        };
        let line = tools::command_of(call).or_else(|| tools::typed_line(call, &self.conversation));
        let command = line.map(|command| (rules.judge(&command), command));
        match command {
            Some((judgement, command)) if judgement.decision >= by_tool.decision => {
                CallSubject { noun: "command", shown: command, judgement }
            }
            _ => CallSubject { noun: "tool", shown: describe(call), judgement: by_tool },
        }
    }
}

/// Whether a call of a tool that may change something is fine before the plan is accepted: it prepares the plan or ends
/// the job, or its command line only looks at things.
fn is_allowed_before_plan(call: &ToolCall) -> bool {
    tools::role_of(&call.name).is_control
        || tools::command_of(call).is_some_and(|line| only_reads(&line))
        || tools::is_poll(call)
}

fn verb(noun: &str) -> &'static str {
    if noun == "command" { "run" } else { "use" }
}

/// Renders a tool call with its arguments, shortest argument first, so that a long one does not hide the others.
fn describe(call: &ToolCall) -> String {
    let Value::Object(arguments) = &call.arguments else {
        return format!("{} {}", call.name, shorten(&call.arguments.to_string()));
    };
    let mut given: Vec<(String, String)> = arguments
        .iter()
        .map(|(name, value)| (Value::from(name.as_str()).to_string(), value.to_string()))
        .collect();
    given.sort_by_key(|(name, value)| name.len() + value.len());
    let shown: Vec<String> = given.iter().map(|(name, value)| format!("{name}:{}", shorten(value))).collect();
    format!("{} {{{}}}", call.name, shown.join(","))
}

/// Keeps the beginning and the end of a text and states how much is left out between them.
fn shorten(text: &str) -> String {
    let length = text.chars().count();
    let left_out = length.saturating_sub(SHOWN_HEAD + SHOWN_TAIL);
    if left_out == 0 {
        return text.to_owned();
    }
    let head: String = text.chars().take(SHOWN_HEAD).collect();
    let tail: String = text.chars().skip(length - SHOWN_TAIL).collect();
    format!("{head} ... ({left_out} characters are left out) ... {tail}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn described(arguments: Value) -> String {
        describe(&ToolCall { id: "c1".into(), name: "write_file".into(), arguments, opaque: None })
    }

    #[test]
    fn long_argument_is_shortened_and_others_stay_visible() {
        let content = format!("#!/bin/sh\n{}rm -rf /", "# nothing\n".repeat(1_000));
        let shown = described(json!({"content": content, "path": "/etc/cron.d/x"}));
        assert!(shown.starts_with(r#"write_file {"path":"/etc/cron.d/x","content":"#), "{shown}");
        assert!(shown.contains("characters are left out") && shown.ends_with(r#"rm -rf /"}"#), "{shown}");
        assert!(shown.len() < 2_000, "{}", shown.len());
    }

    #[test]
    fn what_is_short_is_shown_whole() {
        assert_eq!(described(json!({"a": "é", "b": 1})), r#"write_file {"b":1,"a":"é"}"#);
        assert_eq!(described(json!("no object")), r#"write_file "no object""#);
        assert_eq!(shorten(&"é".repeat(1_200)), "é".repeat(1_200));
        assert!(shorten(&"é".repeat(1_201)).contains("(1 characters"));
    }
}
