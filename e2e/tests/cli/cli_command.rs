//! Runs CLI commands and checks their outcome.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use e2e::{Server, binary};
use serde_json::Value;

/// A command's output and exit code.
pub(crate) struct Outcome {
    typed: String,
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}{}", self.typed, self.stdout, self.stderr);
        self
    }

    /// Asserts the exit code, and that standard error contains all of these texts.
    #[track_caller]
    pub(crate) fn expect_message(self, code: i32, words: &[&str]) {
        let outcome = self.expect(code);
        for word in words {
            assert!(outcome.stderr.contains(word), "{}: no `{word}` in: {}", outcome.typed, outcome.stderr);
        }
    }

    /// Parses standard output as one JSON document.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{}: {error}: {}", self.typed, self.stdout))
    }

    /// Parses standard output as JSON lines.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stdout.lines().map(parse).collect()
    }
}

/// A command without a server, in a clean environment.
pub(crate) fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(words).current_dir(folder);
    for name in [
        "CAISSON_URL",
        "CAISSON_CONFIG",
        "CAISSON_LISTEN",
        "CAISSON_LOG",
        "CAISSON_RUN_DIR",
        "CAISSON_IMAGES",
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "BROWSER",
    ] {
        command.env_remove(name);
    }
    command.env("CAISSON_DATA", folder.join("data")).env("NO_COLOR", "1");
    command
}

/// Runs a command against a server.
#[track_caller]
pub(crate) fn typed(server: &Server, words: &[&str]) -> Outcome {
    run_cli_with_input(server, words, "")
}

/// Like [`typed`], with text on standard input.
#[track_caller]
pub(crate) fn run_cli_with_input(server: &Server, words: &[&str], input: &str) -> Outcome {
    let mut command = command(server.folder(), words);
    command.env("CAISSON_URL", server.url(""));
    finish(command, input)
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn finish(mut command: Command, input: &str) -> Outcome {
    let typed = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starting the command");
    // A command may exit without reading its input.
    let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("waiting for the command");
    Outcome {
        typed,
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
