//! Shows what happens in a job, a line each, as its events come in.

use std::fmt::Write as _;
use std::time::Instant;

use serde_json::Value;

use crate::terminal::{Colours, harmless};

/// How many characters wide the bar is.
const BAR: usize = 20;

/// Turns events into lines for people.
pub(crate) struct Progress {
    colours: Colours,
    step_count: usize,
    /// Steps that are over.
    steps_done: usize,
    /// What runs now.
    current: String,
    since: Instant,
    /// Output whose line has not ended yet.
    unfinished: String,
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
        }
    }

    /// A line that says how far the job is, cut to a width.
    pub(crate) fn bar(&self, width: usize) -> String {
        let filled = (self.steps_done * BAR).checked_div(self.step_count).unwrap_or(0).min(BAR);
        let seconds = self.since.elapsed().as_secs();
        let line = format!(
            "[{}{}] {}/{}  {seconds} s  {}",
            "#".repeat(filled),
            "-".repeat(BAR - filled),
            self.steps_done,
            self.step_count,
            self.current
        );
        // One column stays free: a full line would make some terminals scroll.
        line.chars().take(width.saturating_sub(1)).collect()
    }

    /// What to print for an event; may be empty.
    pub(crate) fn show(&mut self, event: &Value) -> String {
        let data = &event["data"];
        match event["kind"].as_str().unwrap_or_default() {
            "job_created" => {
                self.step_count = data["spec"]["work"]["steps"].as_array().map_or(0, Vec::len);
                String::new()
            }
            "sandbox_ready" => self.paint("2", "sandbox ready"),
            "sandbox_lost" => self.paint("33", &format!("sandbox lost: {}", text(&data["detail"]))),
            "call_started" => self.started(event),
            "call_output" => self.output(data),
            "call_output_dropped" => self.paint("2", &format!("  ... {} bytes were not kept", data["bytes"])),
            "call_ended" => self.finish_line() + &self.ended(event),
            "egress" if data["event"] == "refused" => {
                self.paint("33", &format!("  refused: {}", text(&data["reason"])))
            }
            "artifact_stored" => {
                self.paint("2", &format!("collected {} files, {} bytes", data["files"], data["bytes"]))
            }
            "note" => self.paint("33", &text(&data["text"])),
            _ => String::new(),
        }
    }

    fn started(&mut self, event: &Value) -> String {
        let data = &event["data"];
        let title = ["command", "code", "path", "from"]
            .iter()
            .find_map(|field| data["input"][field].as_str())
            .and_then(|text| text.lines().next())
            .unwrap_or_default();
        let title: String = title.chars().take(90).collect();
        let attempt = event["call"]["attempt"].as_u64().unwrap_or(1);
        let mut line = match data["step"].as_u64() {
            Some(step) => format!("[{}/{}] {} {title}", step + 1, self.step_count, text(&data["tool"])),
            None => format!("[api] {title}"),
        };
        if attempt > 1 {
            let _ = write!(line, " (attempt {attempt})");
        }
        if let Some(step) = data["step"].as_u64() {
            // A step that is tried again, or done again after a loss, is not done.
            self.steps_done = usize::try_from(step).unwrap_or(0);
            self.current = harmless(&title);
        }
        self.paint("1", &line)
    }

    fn output(&mut self, data: &Value) -> String {
        if data["base64"] == true {
            return self.paint("2", "  (binary output)");
        }
        self.unfinished += data["text"].as_str().unwrap_or_default();
        let Some(end) = self.unfinished.rfind('\n') else { return String::new() };
        let rest = self.unfinished.split_off(end + 1);
        let lines = std::mem::replace(&mut self.unfinished, rest);
        lines.lines().map(|line| format!("  {}\n", harmless(line))).collect()
    }

    fn finish_line(&mut self) -> String {
        match std::mem::take(&mut self.unfinished) {
            line if line.is_empty() => String::new(),
            line => format!("  {}\n", harmless(&line)),
        }
    }

    fn ended(&mut self, event: &Value) -> String {
        let data = &event["data"];
        if event["call"]["id"].as_str().is_some_and(|call| call.starts_with("step-")) {
            self.steps_done = (self.steps_done + 1).min(self.step_count);
        }
        let duration = data["duration_ms"].as_u64().unwrap_or(0);
        match data["status"].as_str() {
            Some("succeeded") => self.paint("32", &format!("  done in {duration} ms")),
            _ => self.paint("31", &format!("  failed: {} ({duration} ms)", text(&data["reason"]))),
        }
    }

    fn paint(&self, code: &str, line: &str) -> String {
        self.colours.paint(code, &harmless(line)) + "\n"
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
    fn the_bar_says_how_far_the_job_is_and_fits_the_terminal() {
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
    fn output_cannot_steer_the_terminal() {
        let mut progress = Progress::new(Colours::Off);
        let shown = progress.show(&json!({"kind": "call_output", "data": {"text": "a\u{1b}[2Jb\n"}}));
        assert_eq!(shown, "  a[2Jb\n");
    }
}
