//! Tests: wrong jobs are explained without words of serde.

use serde_json::json;

use super::NewJob;
use crate::json::{SERDE_WORDING, read};

#[test]
fn wrong_jobs_are_explained_without_words_of_serde() {
    for (job, field, problem) in [
        (json!({"task": 5}), "task", "must be a string, not the number 5"),
        (json!({"taks": "x"}), "taks", "unknown field; did you mean `task`?"),
        (json!({"steps": {}}), "steps", "must be a list, not an object"),
        (json!({"steps": [42]}), "steps[0]", "must be an object, not the number 42"),
        (json!({"steps": [{"command": "ls"}]}), "steps[0].tool", "is missing"),
        (json!({"steps": [{"tool": 7}]}), "steps[0].tool", "must be a string"),
        (json!({"steps": [{"tool": "shel"}]}), "steps[0].tool", "did you mean `shell`?"),
        (json!({"steps": [{"tool": "shell"}]}), "steps[0].command", "is missing"),
        (
            json!({"steps": [{"tool": "shell", "command": ["ls"]}]}),
            "steps[0].command",
            "must be a string, not a list",
        ),
        (
            json!({"steps": [{"tool": "shell", "command": "ls", "timeout": 3}]}),
            "steps[0].timeout",
            "unknown field; did you mean `timeout_s`?",
        ),
        (
            json!({"steps": [{"tool": "shell", "command": "ls", "timeout_s": "soon"}]}),
            "steps[0].timeout_s",
            "must be a number, not the string \"soon\"",
        ),
        (
            json!({"steps": [{"tool": "shell", "command": "ls", "expect": {"exit_code": "0"}}]}),
            "steps[0].expect.exit_code",
            "must be a whole number, not the string \"0\"",
        ),
        (
            json!({"steps": [{"tool": "gui", "action": "click", "x": "a", "y": 1}]}),
            "steps[0].x",
            "not the string \"a\"",
        ),
        (json!({"steps": [{"tool": "gui", "action": "fly"}]}), "steps[0].action", "not `fly`"),
        (json!({"steps": [{"tool": "gui", "script": 3}]}), "steps[0].script", "must be a string"),
        (json!({"steps": [{"tool": "gui"}]}), "steps[0].action", "is missing"),
        (
            json!({"steps": [{"tool": "browser", "action": "open", "url": 3}]}),
            "steps[0].url",
            "must be a string",
        ),
        (
            json!({"limits": {"memory_mib": "1g"}}),
            "limits.memory_mib",
            "must be a whole number, not the string \"1g\"",
        ),
        (json!({"limits": []}), "limits", "must be an object, not a list"),
        (json!({"environment": {"A": 1}}), "environment.A", "must be a string, not the number 1"),
        (json!({"on_loss": "explode"}), "on_loss", "must be `retry` or `fail`, not `explode`"),
        (json!({"start": "yes"}), "start", "must be true or false, not the string \"yes\""),
        (json!({"secrets": {"A": {"host": []}}}), "secrets.A.host", "did you mean `hosts`?"),
    ] {
        let error = read::<NewJob, _>(job.clone()).unwrap_err();
        assert_eq!(error.field, field, "{job}: {error}");
        assert!(error.problem.contains(problem), "{job}: {error}");
        let leaked = SERDE_WORDING.iter().find(|words| error.problem.contains(*words));
        assert_eq!(leaked, None, "{job}: {error}");
    }
}
