//! One job on a server.

use serde_json::{Value, json};

use crate::api_response::Answer;
use crate::archive::Archive;
use crate::event::Follower;
use crate::server::{Server, wait_until};

/// A `shell` step.
#[must_use]
pub fn shell(command: &str) -> Value {
    json!({"tool": "shell", "command": command})
}

#[derive(Clone)]
pub struct Job<'a> {
    server: &'a Server,
    pub id: String,
}

impl<'a> Job<'a> {
    pub(crate) fn new(server: &'a Server, id: String) -> Self {
        Self { server, id }
    }

    /// Follows the job's events from the first one.
    #[must_use]
    pub fn follow(&self) -> Follower<'a> {
        Follower::new(self.server, &self.id)
    }

    /// The job's status from `GET /status/{id}`.
    #[track_caller]
    #[must_use]
    pub fn status(&self) -> Value {
        self.server.get(&format!("/status/{}", self.id)).expect(200).json()
    }

    /// Waits until the job has ended and returns its status.
    #[track_caller]
    pub fn wait(&self) -> Value {
        self.follow().until_end();
        self.status()
    }

    /// Waits until the job has ended and asserts its status.
    #[track_caller]
    pub fn wait_for(&self, status: &str) -> Value {
        let now = self.wait();
        assert_eq!(now["status"], status, "{now:#}");
        now
    }

    /// Waits until the job has failed with this code.
    #[track_caller]
    pub fn wait_for_failure(&self, code: &str) -> Value {
        let now = self.wait_for("failed");
        assert_eq!(now["code"], code, "{now:#}");
        assert!(
            now["reason"].as_str().is_some_and(|reason| !reason.is_empty()),
            "no reason for people: {now:#}"
        );
        now
    }

    /// Downloads the job's `output.zip`.
    #[track_caller]
    #[must_use]
    pub fn output(&self) -> Archive {
        Archive::open(self.server.get(&format!("/jobs/{}/output.zip", self.id)).expect(200).body)
    }

    /// Downloads a file that the job has left beside its `output.zip`.
    #[track_caller]
    #[must_use]
    pub fn download(&self, name: &str) -> Answer {
        self.get(&format!("downloads/{name}")).expect(200)
    }

    /// The manifest of the job's `output.zip`: path, size and SHA-256 of each file.
    #[track_caller]
    #[must_use]
    pub fn manifest(&self) -> Value {
        self.download("manifest.json").json()
    }

    /// Sends a GET request to a path below the job.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.server.get(&self.path(path))
    }

    /// Posts JSON to a path below the job.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.server.post(&self.path(path), body)
    }

    /// Writes a file in the job's sandbox.
    #[track_caller]
    pub fn put_file(&self, path: &str, body: impl Into<reqwest::blocking::Body>) -> Answer {
        let request = self.server.request(reqwest::Method::PUT, &self.path(&format!("files/{path}")));
        self.server.send(request.body(body))
    }

    /// Writes a file in the job's sandbox as the holder of the takeover with this token.
    #[track_caller]
    pub fn put_file_as(&self, path: &str, body: impl Into<reqwest::blocking::Body>, token: &str) -> Answer {
        let request = self.server.request(reqwest::Method::PUT, &self.path(&format!("files/{path}")));
        self.server.send(request.header("X-Caisson-Takeover", token).body(body))
    }

    /// Creates an empty file, retrying until the sandbox is reachable: right after a restart that takes a moment.
    #[track_caller]
    pub fn touch(&self, path: &str) {
        wait_until("the sandbox is reached", || self.put_file(path, "").status == 200);
    }

    /// Reads a file of the job.
    #[track_caller]
    pub fn get_file(&self, path: &str) -> Answer {
        self.get(&format!("files/{path}"))
    }

    /// Deletes a file in the job's sandbox.
    #[track_caller]
    pub fn delete_file(&self, path: &str) -> Answer {
        self.server.send(self.server.request(reqwest::Method::DELETE, &self.path(&format!("files/{path}"))))
    }

    /// Runs a shell command in the job's sandbox.
    #[track_caller]
    pub fn exec(&self, command: &str) -> Answer {
        self.post("exec", &json!({"command": command}))
    }

    #[track_caller]
    pub fn cancel(&self) -> Answer {
        self.post("cancel", &json!({}))
    }

    #[track_caller]
    pub fn delete(&self) -> Answer {
        self.server.send(self.server.request(reqwest::Method::DELETE, &format!("/v1/jobs/{}", self.id)))
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/jobs/{}/{rest}", self.id)
    }
}
