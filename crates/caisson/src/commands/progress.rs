//! Shows what happens in a job, a line each, as its events come in.

use std::fmt::Write as _;

use serde_json::Value;

/// Whether lines have colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colours {
    /// On a terminal.
    On,
    /// Elsewhere.
    Off,
}

/// Turns events into lines for people.
pub(crate) struct Progress {
    colours: Colours,
    step_count: usize,
    /// Output whose line has not ended yet.
    unfinished: String,
}

impl Progress {
    pub(crate) fn new(colours: Colours) -> Self {
        Self { colours, step_count: 0, unfinished: String::new() }
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
            "call_ended" => self.finish_line() + &self.ended(data),
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

    fn started(&self, event: &Value) -> String {
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

    fn ended(&self, data: &Value) -> String {
        let duration = data["duration_ms"].as_u64().unwrap_or(0);
        match data["status"].as_str() {
            Some("succeeded") => self.paint("32", &format!("  done in {duration} ms")),
            _ => self.paint("31", &format!("  failed: {} ({duration} ms)", text(&data["reason"]))),
        }
    }

    fn paint(&self, code: &str, line: &str) -> String {
        let line = harmless(line);
        match self.colours {
            Colours::On => format!("\x1b[{code}m{line}\x1b[0m\n"),
            Colours::Off => format!("{line}\n"),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// What a job prints must not be able to steer the terminal of whoever watches.
fn harmless(line: &str) -> String {
    line.chars().filter(|c| *c == '\t' || !c.is_control()).collect()
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
    fn output_cannot_steer_the_terminal() {
        let mut progress = Progress::new(Colours::Off);
        let shown = progress.show(&json!({"kind": "call_output", "data": {"text": "a\u{1b}[2Jb\n"}}));
        assert_eq!(shown, "  a[2Jb\n");
    }
}
