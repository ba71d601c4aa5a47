//! MCP servers as jobs or the configuration define them, and their validation.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The maximum number of arguments and of tool names, and the maximum length of a server name.
const MAX_ARGUMENTS: usize = 100;
const MAX_TOOLS: usize = 1000;
const MAX_NAME_LENGTH: usize = 24;
/// Default timeouts for starting a server and listing its tools, and for a call.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum timeout in seconds.
const MAX_SECONDS: f64 = 3600.0;
/// Headers that the protocol sets.
const RESERVED_HEADERS: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

/// An MCP server as it is written: a command inside the sandbox, or an address outside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewServer {
    /// A program in the sandbox and its arguments; it speaks MCP over standard input and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Variables for the program. They are in the sandbox, so they are no place for keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// The address of a server outside (streamable HTTP); the job's egress policy must allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The tools that the agent may use, by the server's own names; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Seconds for the start and the list of tools; 30 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout_s: Option<f64>,
    /// Seconds for one call; 120 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_timeout_s: Option<f64>,
}

/// A validated server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerSpec {
    pub reach: Reach,
    /// The tools that the agent may use; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// For the start and the tool list.
    pub start_timeout: Duration,
    /// For one call.
    pub call_timeout: Duration,
}

/// How to connect to a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// A process in the sandbox.
    Stdio {
        /// The program and its arguments.
        command: Vec<String>,
        /// Environment variables in addition to the job's own.
        environment: BTreeMap<String, String>,
    },
    /// A server outside the sandbox.
    Http { url: String },
}

/// Headers for an external server. They are sent only to that server.
pub type Headers = Vec<(String, Secret)>;

/// A server from the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Configured {
    pub server: ServerSpec,
    /// Sent with every request.
    pub headers: Headers,
    /// Whether jobs that do not name the server also get it.
    pub is_default: bool,
}

/// A server of a job, as stored with the job; secrets from the configuration are not stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerChoice {
    /// The server with this name in the configuration.
    Configured,
    /// The job's own server.
    Own(Box<ServerSpec>),
}

/// A validation error of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidServer {
    /// The field; empty for the name.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub problem: String,
}

fn invalid(field: impl Into<String>, problem: impl Into<String>) -> InvalidServer {
    InvalidServer { field: field.into(), problem: problem.into() }
}

/// Validates the name of a server, which is the prefix of the names of its tools.
///
/// # Errors
/// What is wrong with the name.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    if starts_well && name.len() <= MAX_NAME_LENGTH && name.bytes().all(is_letter) {
        return Ok(());
    }
    Err(format!(
        "`{}` is no name for a server: 1 to {MAX_NAME_LENGTH} lower-case letters, digits and `-`, a letter first",
        name.escape_debug()
    ))
}

impl NewServer {
    /// Validates every field and fills in the defaults.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(self) -> Result<ServerSpec, InvalidServer> {
        let reach = match (self.command, self.url) {
            (Some(_), Some(_)) => {
                return Err(invalid("url", "a server has either `command` or `url`, not both"));
            }
            (None, None) => {
                return Err(invalid(
                    "command",
                    "is missing; a server needs `command` (a program in the sandbox) or `url` (a server outside)",
                ));
            }
            (Some(command), None) => {
                check_command(&command)?;
                check_environment(&self.environment)?;
                Reach::Stdio { command, environment: self.environment }
            }
            (None, Some(_)) if !self.environment.is_empty() => {
                return Err(invalid("environment", "belongs to a server with `command`"));
            }
            (None, Some(url)) => {
                check_url(&url)?;
                Reach::Http { url }
            }
        };
        if let Some(tools) = &self.tools {
            check_tools(tools)?;
        }
        Ok(ServerSpec {
            reach,
            tools: self.tools,
            start_timeout: seconds("start_timeout_s", self.start_timeout_s, START_TIMEOUT)?,
            call_timeout: seconds("call_timeout_s", self.call_timeout_s, CALL_TIMEOUT)?,
        })
    }
}

impl Configured {
    /// Validates the headers.
    ///
    /// # Errors
    /// The invalid header.
    pub fn new(server: ServerSpec, headers: Headers, is_default: bool) -> Result<Self, InvalidServer> {
        if !headers.is_empty() && !matches!(server.reach, Reach::Http { .. }) {
            return Err(invalid("headers", "belongs to a server with `url`"));
        }
        for (name, value) in &headers {
            let field = format!("headers.{name}");
            if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
                return Err(invalid(field, "is no name of a header"));
            }
            if RESERVED_HEADERS.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
                return Err(invalid(field, "is set by the protocol itself"));
            }
            if http::HeaderValue::from_str(value.reveal()).is_err() {
                return Err(invalid(field, "has a value that no header can have"));
            }
        }
        Ok(Self { server, headers, is_default })
    }
}

fn check_command(command: &[String]) -> Result<(), InvalidServer> {
    if command.first().is_none_or(|program| program.trim().is_empty()) {
        return Err(invalid(
            "command",
            "is empty; give a program and its arguments, such as [\"python3\", \"x.py\"]",
        ));
    }
    if command.len() > MAX_ARGUMENTS || command.iter().any(|word| word.contains('\0')) {
        return Err(invalid("command", format!("has more than {MAX_ARGUMENTS} words, or a NUL character")));
    }
    Ok(())
}

fn check_environment(environment: &BTreeMap<String, String>) -> Result<(), InvalidServer> {
    let bad = environment
        .iter()
        .find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'));
    match bad {
        Some((name, _)) => Err(invalid(format!("environment.{name}"), "is no variable of an environment")),
        None => Ok(()),
    }
}

fn check_url(url: &str) -> Result<(), InvalidServer> {
    let parsed: Option<http::Uri> = url.parse().ok();
    let is_web = |uri: &http::Uri| matches!(uri.scheme_str(), Some("http" | "https"));
    let Some(uri) = parsed.filter(|uri| is_web(uri) && uri.host().is_some_and(|host| !host.is_empty()))
    else {
        return Err(invalid("url", format!("`{}` is no http:// or https:// address", url.escape_debug())));
    };
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(invalid(
            "url",
            "must not hold a password; keys belong in `headers` of the configuration",
        ));
    }
    Ok(())
}

fn check_tools(tools: &[String]) -> Result<(), InvalidServer> {
    if tools.len() > MAX_TOOLS {
        return Err(invalid("tools", format!("has more than {MAX_TOOLS} names")));
    }
    match tools.iter().position(|name| name.is_empty() || name.len() > 200) {
        Some(index) => Err(invalid(format!("tools[{index}]"), "must have 1 to 200 characters")),
        None => Ok(()),
    }
}

fn seconds(field: &str, asked: Option<f64>, default: Duration) -> Result<Duration, InvalidServer> {
    match asked {
        None => Ok(default),
        Some(value) if (0.1..=MAX_SECONDS).contains(&value) => Ok(Duration::from_secs_f64(value)),
        Some(value) => Err(invalid(field, format!("{value} is not between 0.1 and {MAX_SECONDS}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(json: &str) -> String {
        serde_json::from_str::<NewServer>(json).unwrap().check().unwrap_err().to_string()
    }

    #[test]
    fn an_invalid_server_is_rejected_by_field() {
        for (json, words) in [
            ("{}", "command: is missing"),
            (r#"{"command":[]}"#, "command: is empty"),
            (r#"{"command":["a"],"url":"http://x"}"#, "url: a server has either"),
            (r#"{"url":"ftp://x"}"#, "url: `ftp://x` is no http"),
            (r#"{"url":"https://me:word@x/"}"#, "url: must not hold a password"),
            (r#"{"url":"https://x/","environment":{"A":"b"}}"#, "environment: belongs to"),
            (r#"{"command":["a"],"environment":{"A=":"b"}}"#, "environment.A=: is no variable"),
            (r#"{"command":["a"],"tools":[""]}"#, "tools[0]: must have"),
            (r#"{"command":["a"],"call_timeout_s":0}"#, "call_timeout_s: 0 is not between"),
        ] {
            let told = problem(json);
            assert!(told.starts_with(words), "{json}: {told}");
        }
        for name in ["", "Big", "a_b", "-a", "1a", "far-too-long-for-any-server"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("git-hub2").is_ok());
    }

    #[test]
    fn headers_are_validated_and_never_printed() {
        let web = || NewServer { url: Some("https://x/mcp".into()), ..NewServer::default() }.check().unwrap();
        let with =
            |name: &str, value: &str| Configured::new(web(), vec![(name.into(), Secret::new(value))], true);
        let fine = with("Authorization", "Bearer very-secret").unwrap();
        assert!(!format!("{fine:?}").contains("very-secret"));
        assert!(with("Host", "x").unwrap_err().to_string().contains("set by the protocol"));
        let told = with("X-Key", "bad\u{1}secret").unwrap_err().to_string();
        assert!(told.starts_with("headers.X-Key:") && !told.contains("secret"), "{told}");
        let inside = NewServer { command: Some(vec!["a".into()]), ..NewServer::default() }.check().unwrap();
        assert!(Configured::new(inside, vec![("X".into(), Secret::new("y"))], true).is_err());
    }
}
