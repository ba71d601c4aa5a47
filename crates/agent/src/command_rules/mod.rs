//! Rules for the commands that `shell` may run and the tools that may be used. They are data with examples, which
//! are checked when the rules load.
//!
//! A command line is split into its simple commands, including those inside `$(...)`, backquotes and `bash -c`. For
//! each simple command, the rule with the longest matching prefix decides; among equally long ones, the strictest.
//! Of several simple commands, the strictest decision applies. A line that cannot be parsed is judged by the words
//! it contains.
//!
//! Rules for tools match by name, including MCP tools: `hub__send`, or `hub__*` for a prefix. The longest match
//! decides; among equally long ones, the strictest. For a call of `shell`, the stricter of the command rule and the
//! tool rule applies.
//!
//! The rules restrict a cooperative agent. They are not a security boundary: the sandbox is.

mod command_line;
mod read_only;
mod shell_tokenizer;
mod wrappers;

pub(crate) use command_line::starts_shell;
pub(crate) use read_only::only_reads;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::command_line::{SimpleCommand, simple_commands};

/// The rules of a job that asks for approvals but brings no rules.
const STANDARD: &str = include_str!("standard_rules.json");
const MAX_RULES: usize = 500;

/// What to do with a command.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It may run.
    #[default]
    Allow,
    /// A person is asked first.
    Ask,
    /// It may not run.
    Deny,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandRule {
    /// The words that a command starts with, such as `["git", "push"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<String>,
    /// Instead of `prefix`: the name of a tool, such as `browser` or `hub__send`; with `*` at its end, how names begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// What to do with it.
    pub decision: Decision,
    /// Why, told to the model where it is not allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Command lines (or names of tools) that the rule must fit; checked when the rules are loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
    /// Command lines (or names of tools) that it must not fit; checked when the rules are loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counter_examples: Vec<String>,
}

/// All rules of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandRules {
    /// The rules, in any order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<CommandRule>,
    /// For commands that no rule fits.
    #[serde(default)]
    pub otherwise: Decision,
}

/// Whether people are asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// Nobody is asked: what a rule would ask about may run.
    #[default]
    Never,
    /// A person is asked before commands that a rule of kind `ask` fits.
    Ask,
}

/// The decision about a command line or a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleDecision {
    pub decision: Decision,
    /// The words of the deciding rule; `None` if no rule matches.
    pub rule: Option<String>,
    /// The rule's `reason`.
    pub reason: Option<String>,
    /// The simple command that decided; `None` for a tool, or if the whole line was judged.
    pub about: Option<String>,
}

impl RuleDecision {
    /// Allowed, because no rule matches.
    pub(crate) fn allowed() -> Self {
        Self { decision: Decision::Allow, rule: None, reason: None, about: None }
    }
}

impl CommandRules {
    /// The rules of a job that asks for approvals but brings none. They ask about everything that leaves the
    /// sandbox.
    ///
    /// # Errors
    /// The shipped rules are invalid; a test rules this out.
    pub fn standard() -> Result<Self, String> {
        let rules: Self = serde_json::from_str(STANDARD).map_err(|error| error.to_string())?;
        rules.check()?;
        Ok(rules)
    }

    /// Validates the rules and their examples.
    ///
    /// # Errors
    /// The invalid rule, and why.
    pub fn check(&self) -> Result<(), String> {
        if self.rules.len() > MAX_RULES {
            return Err(format!("{} rules are more than {MAX_RULES}", self.rules.len()));
        }
        for (index, rule) in self.rules.iter().enumerate() {
            rule.check_form().map_err(|why| format!("rules[{index}].{why}"))?;
            if let Some(example) = rule.examples.iter().find(|line| !rule.fits_line(line)) {
                return Err(format!("rules[{index}].examples: `{example}` does not fit the rule"));
            }
            if let Some(example) = rule.counter_examples.iter().find(|line| rule.fits_line(line)) {
                return Err(format!("rules[{index}].counter_examples: `{example}` fits the rule"));
            }
        }
        Ok(())
    }

    /// Judges a command line.
    #[must_use]
    pub fn judge(&self, line: &str) -> RuleDecision {
        let judgements = match simple_commands(line) {
            Some(commands) => commands.iter().filter_map(|command| self.judge_command(command)).collect(),
            None => vec![self.judge_words(&loose_words(line), CommandRule::fits_anywhere)],
        };
        let strictest = judgements.into_iter().max_by_key(|judgement: &RuleDecision| judgement.decision);
        strictest.unwrap_or(RuleDecision { decision: Decision::Allow, rule: None, reason: None, about: None })
    }

    /// Judges a simple command. For a command that only starts another one, only restricting rules count.
    fn judge_command(&self, command: &SimpleCommand) -> Option<RuleDecision> {
        let about = Some(command.words.join(" "));
        let judgement = RuleDecision { about, ..self.judge_words(&command.words, CommandRule::fits) };
        let counts = !command.is_wrapper || judgement.rule.is_some() && judgement.decision > Decision::Allow;
        counts.then_some(judgement)
    }

    /// Judges a tool. `otherwise` applies to commands only.
    #[must_use]
    pub fn decide_tool(&self, name: &str) -> RuleDecision {
        let fitting = self.rules.iter().filter(|rule| rule.fits_tool(name));
        let best = fitting.max_by_key(|rule| (rule.tool.as_deref().map_or(0, str::len), rule.decision));
        match best {
            Some(rule) => {
                let (rule_name, reason) = (rule.tool.clone(), rule.reason.clone());
                RuleDecision { decision: rule.decision, rule: rule_name, reason, about: None }
            }
            None => RuleDecision::allowed(),
        }
    }

    fn judge_words(&self, words: &[String], fits: fn(&CommandRule, &[String]) -> bool) -> RuleDecision {
        let best = self
            .rules
            .iter()
            .filter(|rule| fits(rule, words))
            .max_by_key(|rule| (rule.prefix.len(), rule.decision));
        match best {
            Some(rule) => RuleDecision {
                decision: rule.decision,
                rule: Some(rule.prefix.join(" ")),
                reason: rule.reason.clone(),
                about: None,
            },
            None => RuleDecision { decision: self.otherwise, rule: None, reason: None, about: None },
        }
    }
}

impl CommandRule {
    /// Checks that the rule has a subject and that something can match it.
    fn check_form(&self) -> Result<(), String> {
        let is_plain = |name: &str| {
            let name = name.strip_suffix('*').unwrap_or(name);
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        match &self.tool {
            Some(_) if !self.prefix.is_empty() => {
                Err("tool: a rule has either `prefix` or `tool`, not both".into())
            }
            Some(name) if name.is_empty() || !is_plain(name) => Err(format!(
                "tool: `{name}` is no name of a tool: letters, digits, `_` and `-`, and at its end perhaps `*`"
            )),
            None if self.prefix.is_empty() || self.prefix.iter().any(String::is_empty) => {
                Err("prefix: needs at least one word, and none may be empty".into())
            }
            _ => Ok(()),
        }
    }

    fn fits_tool(&self, name: &str) -> bool {
        self.tool.as_deref().is_some_and(|tool| match tool.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == tool,
        })
    }

    fn fits(&self, words: &[String]) -> bool {
        self.tool.is_none()
            && words.len() >= self.prefix.len()
            && self.prefix.iter().zip(words).enumerate().all(|(index, (wanted, word))| {
                // `/usr/bin/git` counts as `git`.
                let name = if index == 0 && !wanted.contains('/') {
                    word.rsplit('/').next().unwrap_or(word)
                } else {
                    word
                };
                name == wanted
            })
    }

    /// For text that cannot be parsed: an allowing rule must not match by accident.
    fn fits_anywhere(&self, words: &[String]) -> bool {
        self.decision != Decision::Allow && words.windows(self.prefix.len()).any(|window| self.fits(window))
    }

    fn fits_line(&self, line: &str) -> bool {
        if self.tool.is_some() {
            return self.fits_tool(line);
        }
        simple_commands(line).is_some_and(|commands| commands.iter().any(|command| self.fits(&command.words)))
    }
}

fn loose_words(line: &str) -> Vec<String> {
    line.split(|c: char| c.is_whitespace() || "\"'`;|&()<>".contains(c))
        .filter(|word| !word.is_empty())
        .map(ToOwned::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(json: &str) -> CommandRules {
        serde_json::from_str(json).unwrap()
    }

    fn decide(rules: &CommandRules, line: &str) -> Decision {
        rules.judge(line).decision
    }

    #[test]
    fn the_shipped_rules_fit_their_examples() {
        let rules = CommandRules::standard().unwrap();
        assert!(rules.rules.iter().all(|rule| !rule.examples.is_empty()), "every rule has an example");
        assert_eq!(decide(&rules, "git status && git push origin main"), Decision::Ask);
        assert_eq!(decide(&rules, "npm install && npm test"), Decision::Allow);
    }

    #[test]
    fn rules_see_through_options_and_wrappers() {
        let rules = rules(
            r#"{"rules":[{"prefix":["rm"],"decision":"deny"},{"prefix":["sudo"],"decision":"ask"},
                {"prefix":["git","push"],"decision":"ask"},{"prefix":["make"],"decision":"allow"}],"otherwise":"ask"}"#,
        );
        assert_eq!(decide(&rules, "sudo -u root rm x"), Decision::Deny);
        assert_eq!(decide(&rules, "sudo make"), Decision::Ask, "a rule for the one that starts it counts");
        assert_eq!(decide(&rules, "timeout -s KILL 5 make"), Decision::Allow, "no rule is about `timeout`");
        assert_eq!(rules.judge("git -C d push").rule.as_deref(), Some("git push"));
    }

    #[test]
    fn the_longest_prefix_decides_and_of_several_commands_the_strictest() {
        let rules = rules(
            r#"{"rules":[{"prefix":["git"],"decision":"ask"},{"prefix":["git","status"],"decision":"allow"},
                {"prefix":["rm"],"decision":"deny"}]}"#,
        );
        assert_eq!(decide(&rules, "git status"), Decision::Allow);
        assert_eq!(decide(&rules, "git push"), Decision::Ask);
        assert_eq!(decide(&rules, "git status; /bin/rm x | git push"), Decision::Deny);
        assert_eq!(decide(&rules, "echo rm"), Decision::Allow);
    }

    #[test]
    fn nested_commands_are_found() {
        let rules = rules(r#"{"rules":[{"prefix":["rm"],"decision":"deny"}]}"#);
        for line in [
            "echo $(rm x)",
            "echo \"a $(rm x)\"",
            "echo `rm x`",
            "bash -c 'rm x'",
            "A=1 sudo -n rm x",
            "true && (cd /tmp; rm x)",
            "if true; then rm x; fi",
            "timeout 5 rm x",
            "r\\m x",
            "'rm' x",
            "find . -name y | xargs rm",
            "echo \"unfinished; rm x",
            ">/dev/null rm x",
            "find . -exec rm {} +",
            "bash <<E\nrm x\nE",
            "$'rm' x",
            "flock f rm x",
        ] {
            assert_eq!(decide(&rules, line), Decision::Deny, "{line}");
        }
        for line in ["echo 'rm x'", "ls rm", "echo hi # rm x", "cat <<E\nrm x\nE"] {
            assert_eq!(decide(&rules, line), Decision::Allow, "{line}");
        }
    }

    #[test]
    fn allow_list_denies_everything_else() {
        let rules = rules(r#"{"rules":[{"prefix":["ls"],"decision":"allow"}],"otherwise":"deny"}"#);
        assert_eq!(decide(&rules, "ls -l"), Decision::Allow);
        assert_eq!(decide(&rules, "ls; curl x"), Decision::Deny);
        assert_eq!(decide(&rules, "ls \"unfinished"), Decision::Deny);
        for line in ["for a in 1 2; do ls; done", "ls $((1+2)) 2>&1 > log", "if ls; then ls; fi"] {
            assert_eq!(decide(&rules, line), Decision::Allow, "{line}");
        }
        let refused = rules.judge("ls; for a in 1; do curl x; done");
        assert_eq!(refused.about.as_deref(), Some("curl x"), "it says which");
    }

    #[test]
    fn rules_with_failing_examples_are_rejected() {
        let wrong =
            rules(r#"{"rules":[{"prefix":["git","push"],"decision":"ask","examples":["git status"]}]}"#);
        assert!(wrong.check().unwrap_err().contains("rules[0].examples: `git status`"));
        for (rule, words) in [
            (r#"{"prefix":[],"decision":"ask"}"#, "rules[0].prefix"),
            (r#"{"prefix":["a"],"tool":"b","decision":"ask"}"#, "either `prefix` or `tool`"),
            (r#"{"tool":"a*b","decision":"ask"}"#, "`a*b` is no name of a tool"),
            (r#"{"tool":"","decision":"ask"}"#, "rules[0].tool"),
            (r#"{"tool":"hub__*","decision":"ask","examples":["hub_x"]}"#, "`hub_x` does not fit"),
        ] {
            let error = rules(&format!(r#"{{"rules":[{rule}]}}"#)).check().unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn longest_matching_tool_rule_decides() {
        let rules = rules(
            r#"{"rules":[{"tool":"hub__*","decision":"ask","examples":["hub__send"],"counter_examples":["hub"]},
                {"tool":"hub__read","decision":"allow"},{"tool":"*","decision":"deny"}],"otherwise":"ask"}"#,
        );
        rules.check().unwrap();
        let decide = |name: &str| rules.decide_tool(name).decision;
        assert_eq!(decide("hub__send"), Decision::Ask);
        assert_eq!(decide("hub__read"), Decision::Allow);
        assert_eq!(decide("browser"), Decision::Deny);
        assert_eq!(rules.judge("hub__read").decision, Decision::Ask, "a rule for tools is none for commands");
    }
}
