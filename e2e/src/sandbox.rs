//! One bare sandbox on a server.

use reqwest::Method;
use serde_json::{Value, json};

use crate::api_response::Answer;
use crate::event::Follower;
use crate::server::Server;
use crate::websocket::Socket;

#[derive(Clone)]
pub struct Sandbox<'a> {
    server: &'a Server,
    pub id: String,
}

impl<'a> Sandbox<'a> {
    pub(crate) fn new(server: &'a Server, id: String) -> Self {
        Self { server, id }
    }

    /// Follows the sandbox's events from the first one.
    #[must_use]
    pub fn follow(&self) -> Follower<'a> {
        Follower::new(self.server, &self.id)
    }

    /// The sandbox as the API shows it.
    #[track_caller]
    #[must_use]
    pub fn view(&self) -> Value {
        self.server.get(&format!("/v1/sandboxes/{}", self.id)).expect(200).json()
    }

    /// A URL path below the sandbox.
    #[must_use]
    pub fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}/{rest}", self.id)
    }

    /// Sends a GET request to a path below the sandbox.
    #[track_caller]
    pub fn get(&self, rest: &str) -> Answer {
        self.server.get(&self.path(rest))
    }

    /// Posts JSON to a path below the sandbox.
    #[track_caller]
    pub fn post(&self, rest: &str, body: &Value) -> Answer {
        self.server.post(&self.path(rest), body)
    }

    /// Writes a file in the sandbox.
    #[track_caller]
    pub fn put_file(&self, path: &str, body: impl Into<reqwest::blocking::Body>) -> Answer {
        let request = self.server.request(Method::PUT, &self.path(&format!("files/{path}")));
        self.server.send(request.body(body))
    }

    /// Runs a shell command in the sandbox.
    #[track_caller]
    #[must_use]
    pub fn exec(&self, command: &str) -> Value {
        self.post("exec", &json!({"command": command})).expect(200).json()
    }

    /// Starts a process and opens a stream to it.
    #[track_caller]
    #[must_use]
    pub fn stream(&self, request: &Value) -> Socket {
        let mut socket = Socket::open(self.server, &self.path("exec/stream"));
        socket.send(request);
        socket
    }

    /// Ends the sandbox.
    #[track_caller]
    pub fn end(&self) -> Answer {
        self.server.send(self.server.request(Method::DELETE, &format!("/v1/sandboxes/{}", self.id)))
    }
}
