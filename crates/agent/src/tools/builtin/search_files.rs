//! `search_files`: finds matching lines in the workspace, with ripgrep if the image has it, otherwise with grep.

use std::time::Duration;

use context::truncate::first_characters;
use protocol::Program;
use schemars::JsonSchema;
use serde::Deserialize;

use super::workspace_path;
use crate::event::ToolEnd;
use crate::host::{ExecReport, ExecStart, ProcessRequest, Stopped};
use crate::tools::{CallContext, Importance, Tool, ToolFlow, ToolRole};

const WAIT: Duration = Duration::from_secs(60);
/// The number of lines after which the script stops the search. It stands in the script too.
const LISTED_LINES: usize = 400;
/// The maximum number of lines in a result.
const MAX_LINES: usize = 200;
/// Longer lines are cut, in characters.
const LONGEST_LINE: usize = 300;

/// Uses ripgrep if it is installed. Both variants skip files that a person would not search.
const SCRIPT: &str = r#"
pattern=$1; place=$2; glob=$3; case=$4
if command -v rg >/dev/null 2>&1; then
  set -- --line-number --no-heading --color never --max-columns 400 --hidden --glob '!.git' --glob '!node_modules' --glob '!.caisson'
  [ -n "$glob" ] && set -- "$@" --glob "$glob"
  [ "$case" = ignore ] && set -- "$@" --ignore-case
  rg "$@" --regexp "$pattern" -- "$place" | head -n 400
else
  set -- -rnIE --exclude-dir=.git --exclude-dir=node_modules --exclude-dir=.caisson --exclude-dir=target
  [ -n "$glob" ] && set -- "$@" "--include=$glob"
  [ "$case" = ignore ] && set -- "$@" -i
  grep "$@" -e "$pattern" -- "$place" | head -n 400
fi
code=${PIPESTATUS[0]}
[ "$code" = 141 ] && code=0
exit "$code"
"#;

pub(super) struct SearchFiles;

/// What to look for.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// A regular expression.
    #[serde(alias = "query", alias = "regex")]
    pattern: String,
    /// The directory or file to look in, /workspace when absent.
    #[serde(default)]
    path: Option<String>,
    /// Only files whose name fits this glob pattern.
    #[serde(default, alias = "include", alias = "glob")]
    files: Option<String>,
    /// Whether capital and small letters are the same.
    #[serde(default)]
    ignore_case: Option<bool>,
}

impl Tool for SearchFiles {
    const NAME: &'static str = "search_files";
    const DESCRIPTION: &'static str = "Finds lines that fit a regular expression in the files of the workspace; shows file, line number and line.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        importance: Importance::Simple,
        other_names: &[
            "grep",
            "search",
            "rg",
            "find",
            "ripgrep",
            "greptool",
            "grepsearch",
            "searchfilecontent",
            "codebasesearch",
        ],
        ..ToolRole::OPTIONAL
    };

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        if input.pattern.is_empty() {
            return Ok(ToolEnd::malformed("search_files: `pattern` is empty").into());
        }
        let path = match workspace_path(input.path.as_deref().unwrap_or_default()) {
            Ok(path) => path,
            Err(problem) => return Ok(ToolEnd::failed(format!("search_files: {problem}")).into()),
        };
        let place = if path.is_empty() { ".".to_owned() } else { path };
        let case = if input.ignore_case.unwrap_or(false) { "ignore" } else { "exact" };
        let arguments = ["bash", "-c", SCRIPT, "search_files", &input.pattern, &place]
            .into_iter()
            .chain([input.files.as_deref().unwrap_or_default(), case]);
        let start = ExecStart {
            timeout: Some(WAIT),
            ..ExecStart::program(Program::Arguments(arguments.map(ToOwned::to_owned).collect()))
        };
        let request = ProcessRequest {
            call: call.id.to_owned(),
            key: call.key(),
            start: Some(start),
            from_chunk: 0,
            wait: WAIT + Duration::from_secs(5),
        };
        let report = call.host.execute(request).await?;
        Ok(result_of(report, &input.pattern).into())
    }
}

fn result_of(report: ExecReport, pattern: &str) -> ToolEnd {
    let code = report.end.as_ref().and_then(|end| end.exit_code);
    // A search that is stopped because there are enough lines ends with a code that says nothing: ripgrep exits with 1,
    // grep with 2 or by a signal.
    let is_stopped = report.end.is_some() && report.output.lines().count() >= LISTED_LINES;
    match code {
        _ if is_stopped => ToolEnd::done(shorten(&report.output)),
        Some(0 | 1) if !report.output.trim().is_empty() => ToolEnd::done(shorten(&report.output)),
        Some(0 | 1) => ToolEnd::done(format!("no line matches `{pattern}`")),
        _ => {
            let problem = report.end.and_then(|end| end.problem).unwrap_or_else(|| "it took too long".into());
            ToolEnd::failed(format!("search_files: {problem}\n{}", report.output))
        }
    }
}

fn shorten(output: &str) -> String {
    let mut text = String::new();
    for line in output.lines().take(MAX_LINES) {
        let line = line.strip_prefix("./").unwrap_or(line);
        let shown = first_characters(line, LONGEST_LINE);
        text += shown;
        text += if shown.len() < line.len() { "…\n" } else { "\n" };
    }
    if output.lines().count() > MAX_LINES {
        text += "[there are more; use a narrower pattern, `path` or `files`]\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ToolStatus;
    use crate::host::ExecEnd;

    fn report(output: &str, code: i32) -> ExecReport {
        let problem = (code != 0).then(|| format!("exit code {code}"));
        let end = Some(ExecEnd { exit_code: Some(code), problem });
        ExecReport { end, output: output.into(), ..ExecReport::default() }
    }

    #[test]
    fn lines_found_before_the_pipe_was_closed_are_shown() {
        let lines = "./a.txt:1:x\n".repeat(400);
        let end = result_of(report(&lines, 1), "x");
        assert_eq!(end.status, ToolStatus::Done);
        assert!(end.text.starts_with("a.txt:1:x\n") && end.text.contains("there are more"), "{}", end.text);
    }

    /// Runs the script as a sandbox does, with or without SIGPIPE, and with or without ripgrep.
    fn search(folder: &std::path::Path, signals: &str, programs: &str) -> ExecReport {
        let line = format!("{signals}\n{programs}\n{SCRIPT}");
        let arguments = ["-c", &line, "search_files", "needle", ".", "", "exact"];
        let done = std::process::Command::new("bash").args(arguments).current_dir(folder).output().unwrap();
        report(&String::from_utf8_lossy(&done.stdout), done.status.code().unwrap_or(141))
    }

    #[test]
    fn many_matches_in_one_file_are_shown_however_the_search_is_stopped() {
        let folder = std::env::temp_dir().join(format!("caisson-search-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("log.txt"), "a needle in the log\n".repeat(50_000)).unwrap();
        // ripgrep ignores SIGPIPE, and reports the closed pipe with exit code 1.
        let like_ripgrep = "rg() { grep -rn needle . 2>/dev/null; return 1; }";
        for signals in ["trap '' PIPE", ""] {
            for programs in [like_ripgrep, "command() { false; }"] {
                let end = result_of(search(&folder, signals, programs), "needle");
                assert_eq!(end.status, ToolStatus::Done, "{signals} {programs}: {}", end.text);
                assert!(
                    end.text.starts_with("log.txt:1:a needle") && end.text.contains("there are more"),
                    "{}",
                    end.text
                );
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn long_lines_are_cut_between_words() {
        let end = result_of(report(&format!("a.txt:1:{}\n", "needle ".repeat(100)), 0), "needle");
        assert!(end.text.ends_with("needle …\n") && end.text.len() < 320, "{}", end.text);
    }

    #[test]
    fn a_search_without_a_match_succeeds_and_says_so() {
        let end = result_of(report("", 1), "x");
        assert_eq!((end.status, end.text.as_str()), (ToolStatus::Done, "no line matches `x`"));
    }

    #[test]
    fn a_search_that_fails_says_why() {
        let end = result_of(report("rg: regex parse error\n", 2), "(");
        assert_eq!(end.status, ToolStatus::Failed);
        assert!(end.text.contains("exit code 2") && end.text.contains("regex parse error"), "{}", end.text);
    }
}
