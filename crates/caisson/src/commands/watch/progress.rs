//! Shows a job's events as they arrive, one line each.

use std::fmt::Write as _;
use std::time::Instant;

use serde_json::Value;

use super::progress_agent;
use crate::output::duration_text;
use crate::output::terminal::{Colours, bar, strip_control_characters};

/// How many characters of the model's current answer the bar shows.
const LIVE_TEXT_CHARS: usize = 60;

/// Turns events into lines.
pub(crate) struct Progress {
    colours: Colours,
    step_count: usize,
    /// The number of finished steps.
    steps_done: usize,
    /// The title of the running step or call.
    current: String,
    since: Instant,
    /// Output without its final newline yet.
    unfinished: String,
    /// The latest text of the model's incomplete answer.
    live_text: String,
}

impl Progress {
    pub(crate) fn new(colours: Colours) -> Self {
        Self {
            colours,
            step_count: 0,
            steps_done: 0,
            current: "waiting for a sandbox".into(),
            since: Instant::now(),
            unfinished: String::new(),
            live_text: String::new(),
        }
    }

    /// The progress line, cut to a width.
    pub(crate) fn bar(&self, width: usize) -> String {
        let (done, all) = (self.steps_done, self.step_count);
        let seconds = self.since.elapsed().as_secs();
        let line = format!("{} {done}/{all}  {seconds} s  {}", bar(done as u64, all as u64), self.current);
        // One column stays free: a full line would make some terminals scroll.
        line.chars().take(width.saturating_sub(1)).collect()
    }

    /// The text to print for an event; may be empty.
    pub(crate) fn show(&mut self, event: &Value) -> String {
        let data = &event["data"];
        match event["kind"].as_str().unwrap_or_default() {
            "job_created" => {
                self.step_count = data["spec"]["work"]["steps"].as_array().map_or(0, Vec::len);
                String::new()
            }
            "sandbox_ready" => self.paint("2", "sandbox ready"),
            "sandbox_lost" => self.paint("33", &format!("sandbox lost: {}", text(&data["detail"]))),
            "sandbox_paused" => self.paint("33", &format!("sandbox paused: {}", text(&data["reason"]))),
            "sandbox_resumed" => self.paint("2", "sandbox resumed"),
            "call_started" => self.started(event),
            "call_output" => self.output(data),
            "call_output_dropped" => self.paint("2", &format!("  ... {} bytes dropped", data["bytes"])),
            "call_ended" => self.finish_line() + &self.ended(event),
            "time_limit_changed" => {
                let limit = duration_text(data["after_ms"].as_u64());
                self.paint("2", &format!("the time limit is now {limit}"))
            }
            "egress" if data["event"] == "refused" => {
                let how = if data["verdict"] == "failed" { "failed" } else { "refused" };
                self.paint("33", &format!("  {how}: {}", text(&data["reason"])))
            }
            "artifact_stored" => {
                let files = if data["files"] == 1 { "file" } else { "files" };
                self.paint("2", &format!("collected {} {files}, {} bytes", data["files"], data["bytes"]))
            }
            "note" => self.paint("33", &text(&data["text"])),
            kind => self.agent(kind, data),
        }
    }

    fn started(&mut self, event: &Value) -> String {
        let data = &event["data"];
        let title: String = title(&text(&data["tool"]), &data["input"]).chars().take(90).collect();
        let attempt = event["call"]["attempt"].as_u64().unwrap_or(1);
        let mut line = match data["step"].as_u64() {
            Some(step) => format!("[{}/{}] {} {title}", step + 1, self.step_count, text(&data["tool"])),
            None if event["call"]["id"].as_str().is_some_and(|call| call.starts_with("turn-")) => {
                self.current = strip_control_characters(&title);
                format!("> {} {title}", text(&data["tool"]))
            }
            None => format!("[api] {title}"),
        };
        if attempt > 1 {
            let _ = write!(line, " (attempt {attempt})");
        }
        if let Some(step) = data["step"].as_u64() {
            // A step that is retried or repeated after a loss is not done.
            self.steps_done = usize::try_from(step).unwrap_or(0);
            self.current = strip_control_characters(&title);
        }
        self.paint("1", &line)
    }

    fn agent(&mut self, kind: &str, data: &Value) -> String {
        if kind == "delta" {
            return self.add_live_text(data);
        }
        self.live_text.clear();
        if kind == "turn_started" {
            self.current = format!("waiting for {}", text(&data["model"]));
        }
        if kind == "plan_changed" {
            let items = data["plan"]["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            self.step_count = items.len();
            self.steps_done =
                items.iter().filter(|item| item["status"] == "done" || item["status"] == "skipped").count();
        }
        let Some((colour, lines)) = progress_agent::describe(kind, data) else { return String::new() };
        lines.lines().map(|line| self.paint(colour, line)).collect()
    }

    /// Shows streamed model text in the bar. The whole answer is printed when it is complete.
    fn add_live_text(&mut self, data: &Value) -> String {
        if data["restarted"] == true {
            self.live_text.clear();
        }
        let words = data["text"].as_str().or_else(|| data["reasoning"].as_str()).unwrap_or_default();
        self.live_text += words;
        let letters = self.live_text.chars().count();
        let end: String = self.live_text.chars().skip(letters.saturating_sub(LIVE_TEXT_CHARS)).collect();
        self.live_text = end;
        self.current = strip_control_characters(&self.live_text.replace('\n', " "));
        String::new()
    }

    fn output(&mut self, data: &Value) -> String {
        if data["base64"] == true {
            return self.paint("2", "  (binary output)");
        }
        self.unfinished += data["text"].as_str().unwrap_or_default();
        let Some(end) = self.unfinished.rfind('\n') else { return String::new() };
        let rest = self.unfinished.split_off(end + 1);
        let lines = std::mem::replace(&mut self.unfinished, rest);
        lines.lines().map(|line| format!("  {}\n", strip_control_characters(line))).collect()
    }

    fn finish_line(&mut self) -> String {
        match std::mem::take(&mut self.unfinished) {
            line if line.is_empty() => String::new(),
            line => format!("  {}\n", strip_control_characters(&line)),
        }
    }

    fn ended(&mut self, event: &Value) -> String {
        let data = &event["data"];
        if event["call"]["id"].as_str().is_some_and(|call| call.starts_with("step-")) {
            self.steps_done = (self.steps_done + 1).min(self.step_count);
        }
        let duration = data["duration_ms"].as_u64().unwrap_or(0);
        let note = data["note"].as_str().unwrap_or_default();
        let note: String = note.lines().map(|line| self.paint("33", &format!("  {line}"))).collect();
        note + &match data["status"].as_str() {
            Some("succeeded") => self.paint("32", &format!("  done in {duration} ms")),
            _ => self.paint("31", &format!("  failed: {} ({duration} ms)", text(&data["reason"]))),
        }
    }

    fn paint(&self, code: &str, line: &str) -> String {
        self.colours.paint(code, &strip_control_characters(line)) + "\n"
    }
}

/// A one-line description of a call.
fn title(tool: &str, input: &Value) -> String {
    let first = |names: &[&str]| {
        let words = names.iter().find_map(|name| input[*name].as_str()).unwrap_or_default();
        words.lines().next().unwrap_or_default().to_owned()
    };
    match tool {
        "process" => {
            let typed = input["text"].as_str().map(|words| format!(" {words:?}")).unwrap_or_default();
            format!("{} {}{typed}", first(&["action"]), first(&["handle"]))
        }
        "finish" => first(&["summary"]),
        "apply_patch" => {
            let patch =
                ["patch", "diff", "input"].iter().find_map(|name| input[*name].as_str()).unwrap_or_default();
            let mut files: Vec<&str> = Vec::new();
            for line in patch.lines() {
                let Some(path) = line.strip_prefix("+++ ").or_else(|| line.strip_prefix("--- ")) else {
                    continue;
                };
                let path = path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path).trim();
                if path != "/dev/null" && !files.contains(&path) {
                    files.push(path);
                }
            }
            files.join(", ")
        }
        _ => first(&["command", "code", "path", "from", "url", "query", "question", "action", "name"]),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_call_of_an_agent_says_what_it_is_about() {
        let mut progress = Progress::new(Colours::Off);
        let patch = "--- a/x.rs\n+++ b/x.rs\n@@ -1 +1 @@\n-a\n+b\n--- a/old\n+++ /dev/null\n--- /dev/null\n+++ b/new\n";
        for (tool, input, line) in [
            ("process", json!({"handle": "turn-1-1", "action": "poll"}), "> process poll turn-1-1\n"),
            (
                "process",
                json!({"handle": "turn-1-1", "action": "type", "text": "yes\n"}),
                "> process type turn-1-1 \"yes\\n\"\n",
            ),
            ("finish", json!({"summary": "made\nand more"}), "> finish made\n"),
            ("apply_patch", json!({"patch": patch}), "> apply_patch x.rs, old, new\n"),
            ("http_request", json!({"url": "http://x/"}), "> http_request http://x/\n"),
            ("write_file", json!({"path": "a", "content": "b"}), "> write_file a\n"),
        ] {
            let event = json!({"kind": "call_started", "call": {"id": "turn-2-1", "attempt": 1},
                "data": {"tool": tool, "input": input}});
            assert_eq!(progress.show(&event), line);
        }
    }

    #[test]
    fn a_step_is_shown_with_its_place_output_and_end() {
        let mut progress = Progress::new(Colours::Off);
        progress.show(&json!({"kind": "job_created", "data": {"spec": {"work": {"steps": [{}, {}]}}}}));
        let started = json!({"kind": "call_started", "call": {"id": "step-1", "attempt": 1},
            "data": {"step": 0, "tool": "shell", "input": {"command": "ls"}}});
        assert_eq!(progress.show(&started), "[1/2] shell ls\n");
        assert_eq!(progress.show(&json!({"kind": "call_output", "data": {"text": "a\nb"}})), "  a\n");
        let ended = json!({"kind": "call_ended", "data": {"status": "succeeded", "duration_ms": 4}});
        assert_eq!(progress.show(&ended), "  b\n  done in 4 ms\n");
    }

    #[test]
    fn new_time_limit_is_shown() {
        let event =
            json!({"kind": "time_limit_changed", "data": {"before_ms": 60_000, "after_ms": 5_400_000}});
        assert_eq!(Progress::new(Colours::Off).show(&event), "the time limit is now 1h 30m\n");
    }

    #[test]
    fn collected_files_are_counted_in_words_that_agree() {
        let shown = |files: u32| {
            let event = json!({"kind": "artifact_stored", "data": {"files": files, "bytes": 137}});
            Progress::new(Colours::Off).show(&event)
        };
        assert_eq!(shown(1), "collected 1 file, 137 bytes\n");
        assert_eq!(shown(2), "collected 2 files, 137 bytes\n");
    }

    #[test]
    fn bar_shows_progress_and_fits_the_terminal() {
        let mut progress = Progress::new(Colours::Off);
        progress.show(&json!({"kind": "job_created", "data": {"spec": {"work": {"steps": [{}, {}]}}}}));
        assert!(progress.bar(80).starts_with("[--------------------] 0/2  0 s"), "{}", progress.bar(80));
        progress.show(&json!({"kind": "call_started", "data": {"step": 0, "tool": "shell", "input": {"command": "ls"}}}));
        progress
            .show(&json!({"kind": "call_ended", "call": {"id": "step-1"}, "data": {"status": "succeeded"}}));
        assert_eq!(progress.bar(80), "[##########----------] 1/2  0 s  ls");
        assert_eq!(progress.bar(10).len(), 9);
    }

    #[test]
    fn output_cannot_inject_terminal_escapes() {
        let mut progress = Progress::new(Colours::Off);
        let shown = progress.show(&json!({"kind": "call_output", "data": {"text": "a\u{1b}[2Jb\n"}}));
        assert_eq!(shown, "  a[2Jb\n");
    }
}
