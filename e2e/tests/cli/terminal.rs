//! The CLI on a terminal: progress bars of `caisson run` and `caisson cp`, colors, and the Ctrl-C prompt.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use e2e::{Server, binary, wait_until};

use crate::cli_command::{command, finish, typed};

/// Waits for the file `go`, so that the test decides when it ends; prints a line when the file `more` appears.
const STEPS: &str = r#"[{"tool": "shell", "command": "echo begun; until [ -e go ]; do rm more 2>&- && echo more; sleep 0.05; done"}]"#;
/// Ctrl-C as a terminal sends it.
const INTERRUPT: &[u8] = b"\x03";
const QUESTION: &str = "cancel the job, or leave it running?";

/// A command on its own terminal, provided by `script`.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    fn run(server: &Server) -> Self {
        std::fs::write(server.folder().join("wait.json"), STEPS).unwrap();
        let terminal = Self::open(server, "run --steps wait.json --out result");
        terminal.until("the step prints", |text| text.contains("begun\r\n"));
        terminal
    }

    fn open(server: &Server, arguments: &str) -> Self {
        // Without `exec` the shell would also receive Ctrl-C and might report its own end.
        let line = format!("stty rows 31 cols 97; exec {} {arguments}", binary().display());
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]);
        script.env("CAISSON_URL", server.url("")).env("TERM", "xterm").env_remove("NO_COLOR");
        script.current_dir(server.folder()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().expect("script is missing: apt-get install bsdutils");
        let (keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let shown = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&shown);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                kept.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self { child, keys, shown, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn until(&self, what: &str, holds: impl Fn(&str) -> bool) {
        wait_until(what, || holds(&self.text()));
    }

    fn type_keys(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
        self.keys.flush().unwrap();
    }

    /// The job id from the first line of output.
    fn job(&self) -> String {
        let text = self.text();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("job ")).expect("the job's id");
        line.split_whitespace().next().unwrap().to_owned()
    }

    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        (status.code(), self.text())
    }
}

#[test]
fn terminal_shows_copy_progress() {
    let server = Server::start();
    let id = typed(&server, &["sandboxes", "create"]).expect(0).stdout.trim().to_owned();
    std::fs::write(server.folder().join("large"), vec![7; 8 << 20]).unwrap();
    for (from, to, line) in [
        ("large", format!("{id}:"), "sending [--------------------] 0.0 MiB of 8.0 MiB"),
        (&format!("{id}:large"), "copy".to_owned(), "receiving 0.0 MiB"),
    ] {
        let (code, text) = Terminal::open(&server, &format!("cp {from} {to}")).end();
        assert_eq!(code, Some(0), "{text:?}");
        assert!(text.contains(line), "{text:?}");
        assert!(text.ends_with("\r\x1b[2K1 file\r\n"), "{text:?}");
    }
    // Without a terminal there is no progress line.
    assert_eq!(typed(&server, &["cp", &format!("{id}:large"), "again"]).expect(0).stderr, "");
    assert_eq!(std::fs::read(server.folder().join("copy")).unwrap(), vec![7; 8 << 20]);
}

#[test]
fn terminal_shows_a_progress_bar_and_colors() {
    let server = Server::start();
    let terminal = Terminal::run(&server);
    // The bar is repainted continuously while the step runs.
    terminal.until("the bar is painted twice", |text| text.matches("\r\x1b[2K").count() > 2);
    server.job(&terminal.job()).touch("go");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("\x1b[3") && text.contains("\x1b[0m"), "no colours in {text:?}");
    assert!(text.contains("complete"), "{text}");
    let bar = text.rsplit("\r\x1b[2K").find(|line| line.contains("1/1") || line.contains("0/1"));
    assert!(bar.is_some(), "no bar that counts steps in {text:?}");
}

#[test]
fn without_a_terminal_output_is_plain_lines() {
    let server = Server::start();
    let mut plain = command(server.folder(), &["run", "--steps", "-", "--out", "result"]);
    plain.env("CAISSON_URL", server.url("")).env_remove("NO_COLOR");
    let ran = finish(plain, r#"[{"tool": "shell", "command": "echo hello; sleep 1"}]"#).expect(0);
    assert!(ran.stdout.contains("hello"), "{}", ran.stdout);
    for text in [&ran.stdout, &ran.stderr] {
        assert!(!text.contains(['\x1b', '\r']), "{text:?}");
    }
}

#[test]
fn ctrl_c_prompts_and_c_cancels_the_job() {
    let server = Server::start();
    let mut terminal = Terminal::run(&server);
    let id = terminal.job();
    // Enter continues to follow the job.
    terminal.type_keys(INTERRUPT);
    terminal.until("the question", |text| text.contains(QUESTION));
    terminal.type_keys(b"\n");
    terminal.until("the bar is back", |text| {
        text.rsplit_once(QUESTION).is_some_and(|(_, after)| after.contains("\r\x1b[2K"))
    });
    terminal.type_keys(INTERRUPT);
    terminal.until("the question again", |text| text.matches(QUESTION).count() == 2);
    terminal.type_keys(b"c\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("cancelling") && text.contains("cancelled"), "{text}");
    typed(&server, &["status", &id]).expect(3);
}

#[test]
fn ctrl_c_prompt_stays_visible_while_the_job_prints() {
    let server = Server::start();
    let mut terminal = Terminal::run(&server);
    let job = server.job(&terminal.job());
    terminal.type_keys(INTERRUPT);
    terminal.until("the question", |text| text.contains(QUESTION));
    job.touch("more");
    terminal.until("the question below the line", |text| {
        text.rsplit_once("more\r\n").is_some_and(|(_, after)| after.contains(QUESTION))
    });
    terminal.type_keys(b"\n");
    job.touch("go");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn ctrl_c_prompts_and_l_leaves_the_job_running() {
    let server = Server::start();
    let mut terminal = Terminal::run(&server);
    let id = terminal.job();
    terminal.type_keys(INTERRUPT);
    terminal.until("the question", |text| text.contains(QUESTION));
    terminal.type_keys(b"l\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("goes on") && text.contains("caisson cancel"), "{text}");
    let job = server.job(&id);
    assert_eq!(job.status()["status"], "running");
    job.touch("go");
    job.wait_for("complete");
}
