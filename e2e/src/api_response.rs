//! An HTTP response, with assertions whose messages show the request and the body.

use serde_json::Value;

/// An HTTP response with its body read to the end.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Method and URL of the request, for assertion messages.
    pub request: String,
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub(crate) fn read(request: String, response: reqwest::blocking::Response) -> Self {
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = response.bytes().unwrap_or_else(|error| panic!("{request}: reading the answer: {error}"));
        Self { request, status, headers, body: body.into() }
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Parses the body as JSON; panics if it is not JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{}: {error}: {} {}", self.request, self.status, self.text()))
    }

    /// A header as text; empty if absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Asserts the status code.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}: {}", self.request, self.text());
        self
    }

    /// Asserts that the response is a problem document with this status and code, and returns its `detail`.
    #[track_caller]
    pub fn expect_problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}: {}", self.request, self.text());
        assert!(
            self.header("content-type").starts_with("application/problem+json"),
            "{}: {} is no problem document",
            self.request,
            self.header("content-type")
        );
        let problem = self.json();
        assert_eq!(problem["code"], code, "{}: {problem}", self.request);
        assert_eq!(problem["status"], status, "{}: {problem}", self.request);
        problem["detail"].as_str().unwrap_or_default().to_owned()
    }
}
