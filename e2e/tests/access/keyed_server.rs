//! A server that requires API keys, and requests with a key.

use std::process::{Command, Output};

use e2e::{Answer, Options, Server, binary, shell, wait_until};
use reqwest::Method;
use reqwest::blocking::RequestBuilder;
use serde_json::{Value, json};

/// A server with an admin key.
pub(crate) struct Keyed {
    pub(crate) server: Server,
    pub(crate) admin: String,
}

#[track_caller]
pub(crate) fn start(options: Options) -> Keyed {
    Keyed::of(Server::start_with(options))
}

impl Keyed {
    /// Creates the server's first key, an admin key.
    #[track_caller]
    pub(crate) fn of(server: Server) -> Self {
        let made = server.post("/v1/keys", &json!({"name": "root", "role": "admin"})).expect(201).json();
        Self { server, admin: made["secret"].as_str().expect("a secret").to_owned() }
    }

    /// Creates a key and returns its secret.
    #[track_caller]
    pub(crate) fn key(&self, name: &str, role: &str, limits: &Value) -> String {
        let body = json!({"name": name, "role": role, "limits": limits});
        let made = self.post(&self.admin, "/v1/keys", &body).expect(201).json();
        made["secret"].as_str().expect("a secret").to_owned()
    }

    /// A request authenticated with a key.
    pub(crate) fn request(&self, key: &str, method: Method, path: &str) -> RequestBuilder {
        self.server.request(method, path).bearer_auth(key)
    }

    #[track_caller]
    pub(crate) fn get(&self, key: &str, path: &str) -> Answer {
        self.server.send(self.request(key, Method::GET, path))
    }

    #[track_caller]
    pub(crate) fn post(&self, key: &str, path: &str, body: &Value) -> Answer {
        self.server.send(self.request(key, Method::POST, path).json(body))
    }

    #[track_caller]
    pub(crate) fn delete(&self, key: &str, path: &str) -> Answer {
        self.server.send(self.request(key, Method::DELETE, path))
    }

    /// Submits a job with one shell step and returns its id.
    #[track_caller]
    pub(crate) fn schedule(&self, key: &str, command: &str) -> String {
        let answer = self.post(key, "/schedule", &json!({"steps": [shell(command)]})).expect(202).json();
        answer["job_id"].as_str().expect("a job_id").to_owned()
    }

    /// The job's current status.
    #[track_caller]
    pub(crate) fn status(&self, id: &str) -> String {
        let job = self.get(&self.admin, &format!("/v1/jobs/{id}")).expect(200).json();
        job["status"].as_str().expect("a status").to_owned()
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, id: &str, status: &str) {
        wait_until(&format!("{id} is {status}"), || self.status(id) == status);
    }

    /// Runs the CLI with a key.
    #[track_caller]
    pub(crate) fn caisson(&self, key: Option<&str>, words: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.args(words).env("CAISSON_URL", self.server.url("")).env_remove("CAISSON_KEY");
        command.envs(key.map(|key| ("CAISSON_KEY", key)));
        command.output().expect("running caisson")
    }
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
