//! The ports that the server image publishes: the API, noVNC and JupyterLab of the newest job.

use std::fs;
use std::process::{Command, Output};
use std::time::Instant;

use e2e::source;
use serde_json::{Value, json};

use crate::TIMEOUT;
use crate::engine::{Engine, said};

/// What browsers send.
const BROWSER: &str = "Accept: text/html";

impl Engine {
    /// A client in the network namespace of the engine.
    fn curl(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.network())).args(["curl", "--silent", "--noproxy", "*"]);
        command
    }

    /// Sends a request from the network namespace of the engine, as a visitor of the host named `caisson.test` does.
    fn visit(&self, port: u16, path: &str, headers: &[&str]) -> Visit {
        let mut command = self.curl();
        command.args(["--include", "--header", &format!("Host: caisson.test:{port}")]);
        for header in headers {
            command.args(["--header", header]);
        }
        let output = command.arg(format!("http://127.0.0.1:{port}{path}")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        Visit { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// The options of `docker run` for the server image: its settings, its published ports, and a data folder.
    fn server_options(&self, data: &str) -> Vec<String> {
        let dockerfile = fs::read_to_string(source::root().join("Dockerfile")).unwrap();
        let settings = "deploy/image/caisson.toml";
        assert!(dockerfile.contains(&format!(" {settings} /etc/caisson/\n")), "{dockerfile}");
        assert!(dockerfile.contains("\nCMD [\"serve\"]"), "{dockerfile}");
        let ports = dockerfile.lines().find_map(|line| line.strip_prefix("EXPOSE ")).unwrap();
        assert_eq!(ports, "8000 6080 8888");
        let publish = ports.split(' ').flat_map(|port| ["--publish".to_owned(), format!("{port}:{port}")]);
        let settings = source::root().join(settings).display().to_string();
        let data = self.folder.path().join(data).display().to_string();
        let mounts = [format!("{settings}:/etc/caisson/caisson.toml:ro"), format!("{data}:/var/lib/caisson")];
        let mounts = mounts.into_iter().flat_map(|mount| ["--volume".to_owned(), mount]);
        let fixed = ["--env", "HOME=/root", "caisson-test", "caisson"].map(str::to_owned);
        publish.chain(mounts).chain(fixed).collect()
    }

    /// Runs a command of the server image to its end.
    fn run_server_image(&self, data: &str, words: &[&str]) -> Output {
        let options = self.server_options(data);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.docker(&[&["run", "--rm"][..], &options, words].concat())
    }

    /// Starts the server image in the background and waits until the server answers. Returns the container.
    fn serve_server_image(&self, data: &str, words: &[&str]) -> String {
        let options = self.server_options(data);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let started = self.docker(&[&["run", "--detach"][..], &options, words].concat());
        assert!(started.status.success(), "{}", said(&started));
        let container = String::from_utf8(started.stdout).unwrap().trim().to_owned();
        let end = Instant::now() + TIMEOUT;
        while self.visit(8000, "/readyz", &[]).status != 200 {
            let logs = || said(&self.docker(&["logs", &container]));
            assert!(Instant::now() < end, "the server in the container does not answer: {}", logs());
            std::thread::yield_now();
        }
        container
    }
}

/// A response that a visitor gets.
struct Visit {
    status: u16,
    /// In lowercase.
    head: String,
    body: String,
}

impl Visit {
    fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value).unwrap_or_default()
    }
}

/// With keys, each port requires one that may read the newest job.
fn assert_published_ports_require_a_key(engine: &Engine) {
    let added = ["keys", "add", "ada", "--role", "admin", "--data", "/var/lib/caisson", "--json"];
    let added = engine.run_server_image("keyed", &added);
    let key: Value = serde_json::from_slice(&added.stdout).unwrap_or_else(|_| panic!("{}", said(&added)));
    let bearer = format!("Authorization: Bearer {}", key["secret"].as_str().unwrap());
    let container = engine.serve_server_image("keyed", &["serve"]);

    // In landlock isolation, which is all that Docker's defaults allow.
    let job = json!({"isolation": "landlock", "steps": [{"tool": "shell", "command": "sleep 1000"}]});
    fs::write(engine.folder.path().join("job.json"), job.to_string()).unwrap();
    let body = format!("@{}", engine.folder.path().join("job.json").display());
    let submitted = engine
        .curl()
        .args(["--header", &bearer, "--json", &body, "http://127.0.0.1:8000/schedule"])
        .output()
        .unwrap();
    let job: Value =
        serde_json::from_slice(&submitted.stdout).unwrap_or_else(|_| panic!("{}", said(&submitted)));
    let job = job["job_id"].as_str().unwrap_or_else(|| panic!("{job}")).to_owned();

    for (port, path) in [(8000, "/v1/jobs"), (6080, "/"), (8888, "/lab")] {
        assert_eq!(engine.visit(port, path, &[]).status, 401, "port {port}");
    }
    for port in [6080, 8888] {
        let page = engine.visit(port, "/", &[BROWSER]);
        assert!(page.body.contains("href=\"http://caisson.test:8000/\""), "port {port}: {}", page.body);
    }
    let desktop = format!("/v1/jobs/{job}/desktop");
    let end = Instant::now() + TIMEOUT;
    while engine.visit(6080, "/", &[&bearer]).header("location") != desktop {
        let status = || engine.visit(8000, &format!("/status/{job}"), &[&bearer]).body;
        assert!(Instant::now() < end, "the port does not show the job: {}", status());
        std::thread::yield_now();
    }
    let page = engine.visit(6080, &desktop, &[&bearer]);
    assert!(page.status == 200 && page.body.contains("/assets/desktop.js"), "{}{}", page.head, page.body);
    assert_eq!(engine.visit(6080, "/assets/desktop.js", &[]).status, 200);
    // The image of this test has no JupyterLab, and the job's sandbox says so.
    let end = Instant::now() + TIMEOUT;
    loop {
        let page = engine.visit(8888, "/lab", &[&bearer, BROWSER]);
        if page.body.contains("this image has no JupyterLab") {
            break;
        }
        assert!(page.status == 503 && Instant::now() < end, "{}{}", page.head, page.body);
        std::thread::yield_now();
    }
    engine.docker(&["rm", "--force", &container]);
}

#[test]
fn published_ports_of_the_server_image_show_the_newest_job() {
    let engine = Engine::start_with_bridge();
    let refused = engine.run_server_image("open", &["serve"]);
    let text = said(&refused);
    assert!(!refused.status.success() && text.contains("caisson keys add"), "{text}");
    for setting in ["listen: 0.0.0.0:8000 is", "expose.listen: 0.0.0.0:6080 is"] {
        assert!(text.contains(setting), "no `{setting}` in: {text}");
    }
    // Commands that do not listen work.
    let doctor = engine.run_server_image("open", &["doctor"]);
    assert!(doctor.status.success(), "{}", said(&doctor));

    let container = engine.serve_server_image("open", &["serve", "--insecure-listen"]);
    assert_eq!(engine.visit(8000, "/v1/jobs", &[]).status, 200);
    for port in [6080, 8888] {
        let page = engine.visit(port, "/", &[BROWSER]);
        assert!(page.status == 503 && page.body.contains("No job is running"), "port {port}: {}", page.body);
    }
    engine.docker(&["rm", "--force", &container]);
    assert_published_ports_require_a_key(&engine);
}
