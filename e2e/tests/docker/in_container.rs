//! The server itself in a container, with only the engine's socket, as in deploy/compose/docker.yaml: its sandboxes
//! are sibling containers, which it reaches through the engine's exec.

use e2e::{Engine, binary, free_port, wait_until};
use reqwest::blocking::Client;
use serde_json::{Value, json};

/// A server in a container. Dropping it removes the container and its sandboxes.
struct Contained {
    engine: Engine,
    id: String,
    port: u16,
    client: Client,
}

impl Contained {
    fn start() -> Self {
        let engine = Engine::get();
        let port = free_port();
        let body = json!({
            "Image": "caisson/agent",
            "Cmd": ["/usr/bin/caisson", "serve", "--listen", format!("127.0.0.1:{port}")],
            "Env": ["CAISSON_BACKEND=docker"],
            "Volumes": {"/var/lib/caisson": {}},
            "HostConfig": {
                // The test engine has no bridge network.
                "NetworkMode": "host",
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "Binds": [
                    format!("{}:/usr/bin/caisson:ro", binary().display()),
                    format!("{}:/var/run/docker.sock", engine.socket()),
                ],
            },
        });
        let made = engine.send("POST", "/containers/create", &body).expect("making the container");
        let id = made["Id"].as_str().unwrap().to_owned();
        let client = e2e::http_client().build().unwrap();
        let contained = Self { engine, id, port, client };
        contained.run();
        contained
    }

    /// Starts (or restarts) the server and waits until it is ready.
    fn run(&self) {
        self.engine.ask("POST", &format!("/containers/{}/start", self.id)).expect("starting the container");
        wait_until("the server in the container is ready", || {
            self.client.get(self.url("/readyz")).send().is_ok_and(|answer| answer.status() == 200)
        });
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn schedule(&self, body: &Value) -> String {
        let answer: Value =
            self.client.post(self.url("/schedule")).json(body).send().unwrap().json().unwrap();
        answer["job_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    fn status(&self, job: &str) -> Value {
        let answer = self.client.get(self.url(&format!("/status/{job}"))).send();
        answer.and_then(|answer| answer.json()).unwrap_or_default()
    }

    fn log(&self, job: &str) -> String {
        let answer = self.client.get(self.url(&format!("/v1/jobs/{job}/log"))).send();
        answer.and_then(|answer| answer.text()).unwrap_or_default()
    }

    /// Creates an empty file in the job's workspace, retrying until the sandbox is reachable.
    fn touch(&self, job: &str, path: &str) {
        wait_until("the sandbox is reached", || {
            let request = self.client.put(self.url(&format!("/v1/jobs/{job}/files/{path}")));
            request.body("").send().is_ok_and(|answer| answer.status() == 200)
        });
    }

    /// The sandboxes with this job's label, of any server: other tests use the engine at the same time.
    fn sandboxes(&self, job: &str) -> Vec<Value> {
        let filter = format!("%7B%22label%22%3A%5B%22caisson.job%3D{job}%22%5D%7D");
        let answer = self.engine.ask("GET", &format!("/containers/json?all=true&filters={filter}"));
        answer.unwrap_or_default().as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = std::process::Command::new("curl")
                .args(["-s", "--output", "-", "--unix-socket", &self.engine.socket()])
                .arg(format!("http://docker/containers/{}/logs?stdout=true&stderr=true", self.id))
                .output();
            eprintln!(
                "{}",
                logs.map(|logs| String::from_utf8_lossy(&logs.stdout).into_owned()).unwrap_or_default()
            );
        }
        let _ = self.engine.ask("DELETE", &format!("/containers/{}?force=true&v=true", self.id));
    }
}

#[test]
fn server_in_a_container_runs_sibling_containers_and_recovers_after_restart() {
    let server = Contained::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "shell", "command": "echo one >> log.txt; id -u"},
        {"tool": "shell", "command": "echo two begins >> log.txt; until [ -e go ]; do sleep 0.05; done; echo two ends >> log.txt"},
        {"tool": "shell", "command": "[ \"$(cat log.txt | tr '\\n' ,)\" = 'one,two begins,two ends,' ]"},
    ]}));
    wait_until("step 2 runs", || server.status(&job)["steps"][1]["status"] == "running");
    assert_eq!(server.sandboxes(&job).len(), 1);
    server.engine.ask("POST", &format!("/containers/{}/kill", server.id)).expect("killing the server");
    wait_until("the server is dead", || {
        let found = server.engine.ask("GET", &format!("/containers/{}/json", server.id)).unwrap();
        found["State"]["Running"] == false
    });
    server.run();
    server.touch(&job, "go");
    wait_until("the job is over", || {
        ["complete", "failed", "cancelled"].map(Value::from).contains(&server.status(&job)["status"])
    });
    let (status, log) = (server.status(&job), server.log(&job));
    assert_eq!(status["status"], "complete", "{status}\n{log}");
    assert_eq!(status["steps"][1]["attempts"], 1, "{status}");
    // The server logs what it cannot enforce.
    assert!(log.contains("the disk limit is not enforced"), "{log}");
    wait_until("the sandbox is gone", || server.sandboxes(&job).is_empty());
}
