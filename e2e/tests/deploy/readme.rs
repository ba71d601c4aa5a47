//! Executes the commands of README.md, in order and as written, in one shell on a terminal.
//!
//! The README uses the default ports, so everything runs in a network namespace. Scripted models stand in for the
//! hosted model (by `base_url`) and for Ollama. `./run` compiles nothing, and its demo, which downloads packages, is
//! another small job.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::markdown::{Page, code_spans};
use e2e::{Archive, images, source, wait_until};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use serde_json::{Value, json};

use crate::checkout::{Checkout, program};
use crate::own_network::in_own_network;
use crate::shell::Shell;

const SERVER: &str = "http://127.0.0.1:8000";
/// Where Ollama listens.
const OLLAMA: &str = "127.0.0.1:11434";
const POEM: &str = "A box of air beneath the sea\n";
/// The section with the job that keeps running.
const SANDBOX_SECTION: &str = "Try a sandbox";

/// Stands in for the built program. Only the demo is another job.
const CAISSON: &str = r#"#!/bin/bash
[ "$1" != demo ] || set -- run --steps examples/hello.json "${@:2}"
exec "$(dirname "$0")/../caisson" "$@"
"#;
const OLLAMA_PROGRAM: &str = "#!/bin/sh\n[ \"$1 $#\" = 'pull 2' ] && echo \"success: $2\"\n";
/// Runs until the file `go` exists.
const INTERRUPTED_JOB: &str = r#"{"name": "interrupted", "steps": [
    {"tool": "shell", "name": "blocked", "command": "echo begun >> log; until [ -e go ]; do sleep 0.05; done"}
]}"#;

/// Somebody who follows the README.
struct Reader {
    readme: Page,
    // Before the checkout, whose server it may use.
    shell: Shell,
    checkout: Checkout,
    /// The models that answer now; the last one is asked.
    models: Vec<ScriptedServer>,
    /// The job that the README's commands are about.
    job: String,
}

impl Reader {
    fn new() -> Self {
        let checkout = Checkout::with_defaults();
        let folder = checkout.folder.path().to_owned();
        let release = folder.join("target/release");
        fs::rename(release.join("caisson"), folder.join("target/caisson")).unwrap();
        program(&release.join("caisson"), CAISSON);
        program(&folder.join("bin/ollama"), OLLAMA_PROGRAM);
        fs::create_dir(folder.join("examples")).unwrap();
        for name in ["examples/playground.json", "examples/hello.json"] {
            fs::copy(source::root().join(name), folder.join(name)).unwrap();
        }
        fs::write(folder.join("interrupted.json"), INTERRUPTED_JOB).unwrap();
        fs::write(folder.join("caisson.toml"), "").unwrap();
        let shell = Shell::open(
            &folder,
            &[
                ("PATH", checkout.search_path()),
                ("HOME", folder.join("home").display().to_string()),
                ("CAISSON_IMAGES", images::default_images().display().to_string()),
                ("CAISSON_CONFIG", folder.join("caisson.toml").display().to_string()),
            ],
        );
        let readme = Page::read(&source::root(), Path::new("README.md")).unwrap();
        Self { readme, shell, checkout, models: Vec::new(), job: String::new() }
    }

    /// Executes one line of a code block.
    fn follow(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["./run"] => drop(self.shell.expect(line, "Done.")),
            ["./run", "start"] => drop(self.shell.expect(line, &format!("running on {SERVER} (pid "))),
            ["./run", "stop"] => drop(self.shell.expect(line, "stopped (pid ")),
            ["export", setting] => self.export(line, setting),
            ["ollama", "pull", name] => self.pull_local_model(line, name),
            ["caisson", "models", ..] => self.list_models(line),
            ["caisson", "run", ..] => self.run_task(line),
            ["id=$(caisson", "run", "--steps", "examples/playground.json", "--detach)"] => {
                self.shell.expect(line, "");
                self.job = self.shell.expect("echo \"$id\"", "").trim().to_owned();
                assert_eq!(self.job.len(), 36, "{} is not a full job id", self.job);
            }
            ["caisson", "status", ..] => self.wait_for_last_step(line),
            ["caisson", "exec", ..] => {
                let printed = self.shell.expect(line, "index.html");
                assert!(printed.contains("python3"), "{printed}");
            }
            ["caisson", "attach", ..] => self.use_shell_of_job(line),
            ["caisson", "ports", ..] => {
                self.shell.expect(line, &format!("http://{}-5173.localhost:8000", self.job));
                self.open_addresses();
            }
            ["caisson", "cancel", ..] => drop(self.shell.expect(line, "")),
            ["caisson", "download", _, "--out", "result", "#", "once", ..] => {
                self.shell.repeat(line, |code, _| code == 0);
                assert_eq!(
                    self.result(&self.path("result"), "index.html"),
                    "<h1>Hello from the sandbox</h1>\n"
                );
                self.kill_the_server();
            }
            ["curl", "-X", "POST", ..] => {
                let answer: Value = serde_json::from_str(&self.shell.expect(line, "job_id")).unwrap();
                self.job = answer["job_id"].as_str().unwrap().to_owned();
            }
            ["curl", "-O", url] if url.ends_with("/JOB/output.zip") => {
                self.shell.expect(&line.replace("JOB", &self.job), "");
                assert!(self.result(&self.path("output.zip"), "now.txt").contains(':'));
            }
            ["curl", url] if url.ends_with("/status/JOB") => {
                let is_complete = |_, printed: &str| printed.contains("\"status\":\"complete\"");
                self.shell.repeat(&line.replace("JOB", &self.job), is_complete);
            }
            _ => panic!("README.md has a command that this test does not know: {line}"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.checkout.folder.path().join(name)
    }

    /// The variables of a hosted model lead to a scripted one.
    fn export(&mut self, line: &str, setting: &str) {
        if let Some(model) = setting.strip_prefix("CAISSON_MODEL=anthropic/") {
            let model = start_model(model, "127.0.0.1:0");
            let config = format!("[model]\nbase_url = \"http://{}/v1\"\n", model.address());
            fs::write(self.path("caisson.toml"), config).unwrap();
            self.models.push(model);
        }
        self.shell.expect(line, "");
    }

    /// For a reader without a hosted model. The running server must find the local one by itself.
    fn pull_local_model(&mut self, line: &str, name: &str) {
        self.follow("./run stop");
        fs::write(self.path("caisson.toml"), "").unwrap();
        self.models.clear();
        self.shell.expect("unset CAISSON_MODEL ANTHROPIC_API_KEY", "");
        self.follow("./run start");
        self.shell.expect(line, &format!("success: {name}"));
        self.models.push(start_model(name, OLLAMA));
    }

    fn list_models(&mut self, line: &str) {
        let printed = self.shell.expect(line, "agents use");
        assert!(printed.contains(&format!("http://{OLLAMA}/v1#")), "{printed}");
    }

    fn run_task(&mut self, line: &str) {
        let asked_before = self.models.last().map_or(0, |model| model.requests().len());
        let results = self.result_folders();
        self.shell.expect(line, "complete");
        let mut new = self.result_folders();
        new.retain(|folder| !results.contains(folder));
        assert_eq!(new.len(), 1, "folders named after the job: {new:?}");
        assert_eq!(self.result(&new[0], "poem.txt"), POEM);
        let requests = self.models.last().expect("a model").requests();
        let request = requests.get(asked_before).expect("the model was not asked");
        match request.path.as_str() {
            "/v1/messages" => assert_eq!(request.header("x-api-key"), Some("...")),
            path => assert_eq!(path, "/v1/chat/completions"),
        }
    }

    /// The folders of results, which have the names of their jobs.
    fn result_folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.checkout.folder.path()).unwrap().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("caisson-"))
            })
            .collect()
    }

    /// A file of a result: in its zip archive, or in the folder with the archive or the files.
    fn result(&self, place: &Path, name: &str) -> String {
        if let Ok(text) = fs::read_to_string(place.join(name)) {
            return text;
        }
        let zip = if place.is_dir() { place.join("output.zip") } else { place.to_owned() };
        let bytes = fs::read(&zip).unwrap_or_else(|error| panic!("{}: {error}", zip.display()));
        Archive::open(bytes).text(name)
    }

    /// The comment of the line says to wait until the last step runs.
    fn wait_for_last_step(&mut self, line: &str) {
        assert!(line.contains("# wait until the last step runs"), "{line}");
        let playground: Value =
            serde_json::from_str(include_str!("../../../examples/playground.json")).unwrap();
        let last =
            playground["steps"].as_array().unwrap().last().unwrap()["name"].as_str().unwrap().to_owned();
        self.shell.repeat(line, |_, printed| {
            assert!(!printed.contains("failed"), "{printed}");
            printed.lines().any(|row| row.contains(&last) && row.contains("running"))
        });
    }

    fn use_shell_of_job(&mut self, line: &str) {
        assert!(line.contains("type exit to leave"), "{line}");
        self.shell.begin(line);
        self.shell.until("the job's shell has a prompt", |printed| printed.contains('$'));
        self.shell.type_line("cat index.html");
        self.shell
            .until("the shell reads the file", |printed| printed.contains("<h1>Hello from the sandbox</h1>"));
        self.shell.type_line("exit");
        let (code, printed) = self.shell.finish();
        assert_eq!(code, 0, "{line}: {printed}");
    }

    /// Opens the addresses in the table of the section.
    fn open_addresses(&self) {
        let rows = self.readme.section(SANDBOX_SECTION).unwrap().rows();
        assert!(rows.len() >= 4, "{rows:?}");
        for row in rows {
            let url = code_spans(&row[0])[0];
            let expected = match url {
                "http://ID-5173.localhost:8000" => "Hello from the sandbox",
                "http://ID-jupyter.localhost:8000/lab" => "JupyterLab",
                "http://localhost:8000/v1/jobs/ID/desktop" => "/assets/desktop.js",
                "http://localhost:8000" => "<title>Caisson</title>",
                _ => panic!("README.md has an address that this test does not know: {url}"),
            };
            let url = url.replace("ID", &self.job);
            wait_until(&format!("{url} shows {expected}"), || {
                let (status, body) = fetch(&url);
                status == 200 && body.contains(expected)
            });
        }
        assert_eq!(fetch(&format!("{SERVER}/v1/jobs/{}/desktop/state", self.job)).0, 204);
    }

    /// The paragraph after the section's commands: the server is killed in the middle of another job.
    fn kill_the_server(&mut self) {
        let prose = self.readme.section(SANDBOX_SECTION).unwrap().prose_lines().join("\n");
        let (_, paragraph) =
            prose.split_once("Now kill the server").expect("the paragraph about a killed server");
        assert_eq!(code_spans(paragraph), ["sudo kill -9 PID", "./run status", "./run start"]);
        self.shell.expect("id=$(caisson run --steps interrupted.json --detach)", "");
        self.job = self.shell.expect("echo \"$id\"", "").trim().to_owned();
        self.shell.repeat("caisson status \"$id\"", |_, printed| {
            printed.lines().any(|row| row.contains("blocked") && row.contains("running"))
        });
        let printed = self.shell.expect("./run status", "running: pid ");
        let pid = printed.split("pid ").nth(1).and_then(|rest| rest.split(',').next()).unwrap().to_owned();
        self.shell.expect(&format!("sudo kill -9 {pid}"), "");
        wait_until("the server is gone", || !Path::new(&format!("/proc/{pid}")).exists());
        self.follow("./run start");
        let log = self.shell.repeat("caisson exec \"$id\" 'cat log; touch go'", |code, _| code == 0);
        assert_eq!(log, "begun\n", "the step ran twice");
        let status = format!("curl {SERVER}/status/{}", self.job);
        let printed = self.shell.repeat(&status, |_, printed| printed.contains("\"status\":\"complete\""));
        let job: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(job["steps"][0]["attempts"], 1, "{job}");
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- log of the server ----\n{}", self.checkout.log());
            // A job that still runs would outlive its server.
            let url = format!("{SERVER}/v1/jobs/{}/cancel", self.job);
            let _ = Command::new("curl").args(["--silent", "--max-time", "5", "-X", "POST", &url]).output();
        }
    }
}

/// Starts a model that writes a poem.
fn start_model(name: &str, address: &str) -> ScriptedServer {
    let write = ScriptedAnswer::calls(&[("write_file", json!({"path": "poem.txt", "content": POEM}))]);
    let finish = ScriptedAnswer::calls(&[("finish", json!({"summary": "written"}))]);
    let script = Script { order: Order::Turns, model: name.to_owned(), ..Script::of(vec![write, finish]) };
    ScriptedServer::listen_on_thread(script, address.parse().unwrap()).unwrap()
}

/// Loads an address as a browser does, for which every name below `localhost` is this machine. Returns status and body.
fn fetch(url: &str) -> (u16, String) {
    let output = Command::new("curl")
        .args([
            "--silent",
            "--noproxy",
            "*",
            "--resolve",
            "*:8000:127.0.0.1",
            "--write-out",
            "\n%{http_code}",
            url,
        ])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = printed.rsplit_once('\n').unwrap_or_default();
    (status.parse().unwrap_or_default(), body.to_owned())
}

#[test]
fn commands_of_the_readme_work_in_order_as_written() {
    in_own_network(|| {
        let mut reader = Reader::new();
        let readme = reader.readme.clone();
        let lines: Vec<&str> = readme.code_lines();
        let commands: Vec<&str> =
            lines.into_iter().filter(|line| !line.starts_with("```") && !line.trim().is_empty()).collect();
        assert!(commands.len() >= 20, "{commands:?}");
        for line in commands {
            reader.follow(line);
        }
        reader.follow("./run stop");
    });
}
