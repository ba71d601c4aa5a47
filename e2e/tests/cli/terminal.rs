//! The CLI on a terminal: progress bars of `caisson run` and `caisson cp`, colors, and the Ctrl-C prompt.

use e2e::{Server, Terminal, binary};

use crate::cli_command::{command, finish, typed};

/// Waits for the file `go`, so that the test decides when it ends; prints a line when the file `more` appears.
const STEPS: &str = r#"[{"tool": "shell", "command": "echo begun; until [ -e go ]; do rm more 2>&- && echo more; sleep 0.05; done"}]"#;
/// Ctrl-C as a terminal sends it.
const INTERRUPT: &[u8] = b"\x03";
const QUESTION: &str = "cancel the job, or leave it running?";

/// Runs a job until its step has begun.
fn run(server: &Server) -> Terminal {
    std::fs::write(server.folder().join("wait.json"), STEPS).unwrap();
    let terminal = open(server, "run --steps wait.json --out result");
    terminal.until("the step prints", |text| text.contains("begun\r\n"));
    terminal
}

/// Runs the CLI on a terminal.
fn open(server: &Server, arguments: &str) -> Terminal {
    Terminal::open(&format!("{} {arguments}", binary().display()), |script| {
        script.env("CAISSON_URL", server.url("")).env("TERM", "xterm").env_remove("NO_COLOR");
        script.current_dir(server.folder());
    })
}

/// The job id from the first line of output.
fn job_of(terminal: &Terminal) -> String {
    let text = terminal.text();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("job ")).expect("the job's id");
    line.split_whitespace().next().unwrap().to_owned()
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
        let (code, text) = open(&server, &format!("cp {from} {to}")).end();
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
    let terminal = run(&server);
    // The bar is repainted continuously while the step runs.
    terminal.until("the bar is painted twice", |text| text.matches("\r\x1b[2K").count() > 2);
    server.job(&job_of(&terminal)).touch("go");
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
    let mut terminal = run(&server);
    let id = job_of(&terminal);
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
    let mut terminal = run(&server);
    let job = server.job(&job_of(&terminal));
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
    let mut terminal = run(&server);
    let id = job_of(&terminal);
    terminal.type_keys(INTERRUPT);
    terminal.until("the question", |text| text.contains(QUESTION));
    terminal.type_keys(b"l\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("keeps running") && text.contains("caisson cancel"), "{text}");
    let job = server.job(&id);
    assert_eq!(job.status()["status"], "running");
    job.touch("go");
    job.wait_for("complete");
}
