//! One bare sandbox on a server.

use reqwest::Method;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::event::Follower;
use crate::server::Server;
use crate::socket::Socket;

/// A bare sandbox.
#[derive(Clone)]
pub struct Sandbox<'a> {
    server: &'a Server,
    /// Its id.
    pub id: String,
}

impl<'a> Sandbox<'a> {
    pub(crate) fn new(server: &'a Server, id: String) -> Self {
        Self { server, id }
    }

    /// Its events from the first.
    #[must_use]
    pub fn follow(&self) -> Follower<'a> {
        Follower::new(self.server, &self.id)
    }

    /// What the server says of it.
    #[track_caller]
    #[must_use]
    pub fn view(&self) -> Value {
        self.server.get(&format!("/v1/sandboxes/{}", self.id)).expect(200).json()
    }

    /// The address of a path below it.
    #[must_use]
    pub fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}/{rest}", self.id)
    }

    /// Asks for a path below it.
    #[track_caller]
    pub fn get(&self, rest: &str) -> Answer {
        self.server.get(&self.path(rest))
    }

    /// Sends JSON to a path below it.
    #[track_caller]
    pub fn post(&self, rest: &str, body: &Value) -> Answer {
        self.server.post(&self.path(rest), body)
    }

    /// Writes a file in it.
    #[track_caller]
    pub fn put_file(&self, path: &str, body: impl Into<reqwest::blocking::Body>) -> Answer {
        let request = self.server.request(Method::PUT, &self.path(&format!("files/{path}")));
        self.server.send(request.body(body))
    }

    /// Runs a command line in it.
    #[track_caller]
    #[must_use]
    pub fn exec(&self, command: &str) -> Value {
        self.post("exec", &json!({"command": command})).expect(200).json()
    }

    /// Starts a process and talks to it.
    #[track_caller]
    #[must_use]
    pub fn stream(&self, request: &Value) -> Socket {
        let mut socket = Socket::open(self.server, &self.path("exec/stream"));
        socket.send(request);
        socket
    }

    /// Ends it.
    #[track_caller]
    pub fn end(&self) -> Answer {
        self.server.send(self.server.request(Method::DELETE, &format!("/v1/sandboxes/{}", self.id)))
    }
}
