//! An interactive shell on a terminal, in which a test types commands one after another.

use std::path::Path;

use e2e::{Terminal, wait_until};

/// The prompt: the exit code of the last command between marks that no command prints.
const PROMPT: &str = "<<$?>> ";

pub(crate) struct Shell {
    terminal: Terminal,
    /// How much of the terminal's text belongs to earlier commands.
    seen: usize,
}

impl Shell {
    /// Starts bash in a folder, with these variables and no others.
    pub(crate) fn open(folder: &Path, variables: &[(&str, String)]) -> Self {
        let terminal = Terminal::open("bash --norc --noprofile --noediting -i", |command| {
            command.env_clear().current_dir(folder).env("PS1", PROMPT).env("TERM", "xterm");
            command.env("NO_COLOR", "1").envs(variables.iter().map(|(name, value)| (name, value)));
        });
        let mut shell = Self { terminal, seen: 0 };
        shell.finish();
        shell
    }

    /// Types a command and waits for its end. Panics unless it succeeds and prints `text`; returns what it printed.
    #[track_caller]
    pub(crate) fn expect(&mut self, line: &str, text: &str) -> String {
        let (code, printed) = self.run(line);
        assert_eq!(code, 0, "{line}: {printed}");
        assert!(printed.contains(text), "`{line}` does not print `{text}`: {printed}");
        printed
    }

    /// Types a command again and again until its exit code and output meet a condition. Returns what it printed.
    #[track_caller]
    pub(crate) fn repeat(&mut self, line: &str, holds: impl Fn(i32, &str) -> bool) -> String {
        let mut last = String::new();
        wait_until(&format!("`{line}` shows what is expected"), || {
            let (code, printed) = self.run(line);
            let is_met = holds(code, &printed);
            last = printed;
            is_met
        });
        last
    }

    /// Types a command and waits for its end. Returns its exit code and what it printed.
    #[track_caller]
    fn run(&mut self, line: &str) -> (i32, String) {
        self.begin(line);
        self.finish()
    }

    /// Types a command that reads from the terminal, and waits until the terminal has shown it.
    #[track_caller]
    pub(crate) fn begin(&mut self, line: &str) {
        self.type_line(line);
        let start = self.seen;
        self.terminal.until("the typed line is shown", |text| text[start..].contains('\n'));
        let text = self.terminal.text();
        self.seen += text[start..].find('\n').map_or(0, |end| end + 1);
    }

    /// Types a line without waiting.
    #[track_caller]
    pub(crate) fn type_line(&mut self, line: &str) {
        self.terminal.type_keys(format!("{line}\n").as_bytes());
    }

    /// Waits until what the command has printed meets a condition.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&str) -> bool) {
        let start = self.seen;
        self.terminal.until(what, |text| holds(&text[start..]));
    }

    /// Waits for the end of the command. Returns its exit code and what it printed.
    #[track_caller]
    pub(crate) fn finish(&mut self) -> (i32, String) {
        let start = self.seen;
        wait_until("the command ends", || at_prompt(&self.terminal.text()[start..]).is_some());
        let text = self.terminal.text();
        self.seen = text.len();
        let (code, printed) = at_prompt(&text[start..]).expect("the prompt");
        (code, printed.replace("\r\n", "\n"))
    }
}

/// The exit code and the text before the prompt, if the text ends with a prompt.
fn at_prompt(text: &str) -> Option<(i32, &str)> {
    let (printed, code) = text.strip_suffix(">> ")?.rsplit_once("<<")?;
    Some((code.parse().ok()?, printed))
}

#[test]
fn a_prompt_ends_a_command_and_has_its_exit_code() {
    assert_eq!(at_prompt("one\r\n<<0>> "), Some((0, "one\r\n")));
    assert_eq!(at_prompt("no line end<<130>> "), Some((130, "no line end")));
    assert_eq!(at_prompt("<<0>> ls"), None);
    assert_eq!(at_prompt("cat <<x>> "), None);
}
