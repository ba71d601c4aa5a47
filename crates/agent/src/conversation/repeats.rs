//! Counts how often the same call was made although nothing in the workspace was changed in between. Pure.

use std::collections::HashMap;

use context::{ToolEffect, tool_effect};
use serde_json::Value;

use super::PROCESS_TOOL;
use crate::command_rules::only_reads;

/// How often each call was made since something else changed the workspace.
#[derive(Debug, Clone, Default)]
pub(super) struct Repeats {
    counts: HashMap<u64, usize>,
}

impl Repeats {
    /// Counts a call. A successful one that may have changed the workspace makes it worthwhile to repeat all others.
    pub(super) fn on_call(&mut self, digest: u64, tool: &str, input: &str, is_done: bool) {
        if tool == PROCESS_TOOL {
            return;
        }
        if is_done && may_change_workspace(tool, input) {
            self.counts.retain(|call, _| *call == digest);
        }
        *self.counts.entry(digest).or_default() += 1;
    }

    pub(super) fn count(&self, digest: u64) -> usize {
        self.counts.get(&digest).copied().unwrap_or_default()
    }
}

fn may_change_workspace(tool: &str, input: &str) -> bool {
    if tool != "shell" {
        // What is on the screen is seen again, whatever the programs there do to files.
        let effect = tool_effect(tool);
        return !matches!(effect, Some(ToolEffect::None | ToolEffect::Reads | ToolEffect::Screen));
    }
    let input: Value = serde_json::from_str(input).unwrap_or_default();
    let command = input["command"].as_str().or_else(|| input["cmd"].as_str());
    command.is_none_or(|command| !only_reads(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_until_something_else_changes_the_workspace() {
        let mut repeats = Repeats::default();
        let test = r#"{"command":"make test"}"#;
        for _ in 0..3 {
            repeats.on_call(1, "shell", test, true);
            repeats.on_call(2, "read_file", r#"{"path":"a"}"#, true);
            repeats.on_call(3, "shell", r#"{"command":"ls -l"}"#, true);
            repeats.on_call(4, "write_file", r#"{"path":"a","content":""}"#, false);
        }
        // Each `make test` may have changed what the others read.
        assert_eq!([1, 2, 3].map(|call| repeats.count(call)), [3, 1, 1]);
        repeats.on_call(5, "write_file", r#"{"path":"a","content":"x"}"#, true);
        assert_eq!([1, 2, 5].map(|call| repeats.count(call)), [0, 0, 1]);
        repeats.on_call(6, PROCESS_TOOL, "{}", true);
        assert_eq!(repeats.count(6), 0);
    }
}
