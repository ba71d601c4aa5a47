//! The restrictions of a rule to methods and paths. They apply where the proxy can see requests: plain HTTP, and
//! hosts whose TLS it terminates. For other connections such a rule allows nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::EgressError;

/// The maximum number of methods or paths per rule.
const MAX_ENTRIES: usize = 64;
/// The maximum length of a method in a rule.
const LONGEST_METHOD: usize = 32;
/// The maximum length of a path in a rule.
const LONGEST_PATH: usize = 1024;

/// A rule in object form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleSpec {
    pub(crate) host: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) methods: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) paths: Vec<String>,
    /// Whether a tunnel may carry something other than TLS.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) without_tls: bool,
}

/// Allowed methods and paths; an empty list allows all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct RequestFilter {
    methods: Vec<String>,
    paths: Vec<String>,
    /// The path of a single request, compared byte for byte: a star in it is not a wildcard.
    exact: Option<String>,
}

impl RequestFilter {
    pub(crate) fn check(object: RuleSpec) -> Result<Self, EgressError> {
        let refuse = |why: String| EgressError::Entry { entry: object.host.chars().take(300).collect(), why };
        if object.methods.len() > MAX_ENTRIES || object.paths.len() > MAX_ENTRIES {
            return Err(refuse(format!("more than {MAX_ENTRIES} methods or paths")));
        }
        for method in &object.methods {
            if method.is_empty()
                || method.len() > LONGEST_METHOD
                || !method.bytes().all(|byte| byte.is_ascii_uppercase())
            {
                return Err(refuse(format!("{method:.40?} is not a method such as GET or POST")));
            }
        }
        for path in &object.paths {
            let star = path.find('*').is_none_or(|at| at + 1 == path.len());
            if !path.starts_with('/') || path.len() > LONGEST_PATH || !star || path.contains(['?', '#', '%'])
            {
                return Err(refuse(format!(
                    "the path {path:.80?} must begin with / and may have a star only at the end"
                )));
            }
        }
        Ok(Self { methods: object.methods, paths: object.paths, exact: None })
    }

    /// Allows one method and one path, and none that a server might treat as the same. `None` if they are too long
    /// for a person to read.
    pub(crate) fn of_request(method: &str, path: &str) -> Option<Self> {
        let is_short = method.len() <= LONGEST_METHOD && path.len() <= LONGEST_PATH;
        is_short.then(|| Self {
            methods: vec![method.to_owned()],
            paths: Vec::new(),
            exact: Some(path.to_owned()),
        })
    }

    /// Whether it allows every request.
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.methods.is_empty() && self.paths.is_empty() && self.exact.is_none()
    }

    pub(crate) fn object(&self, host: String) -> RuleSpec {
        let paths = self.paths.iter().chain(&self.exact).cloned().collect();
        RuleSpec { host, methods: self.methods.clone(), paths, without_tls: false }
    }

    /// Whether it allows a request with this method and path (without query).
    pub(crate) fn allows(&self, method: &str, path: &str) -> bool {
        let fits_method = self.methods.is_empty() || self.methods.iter().any(|allowed| allowed == method);
        fits_method
            && match &self.exact {
                Some(exact) => exact == path,
                None => self.paths.is_empty() || self.allows_path(path),
            }
    }

    fn allows_path(&self, path: &str) -> bool {
        // A path that a server might interpret differently never matches.
        if path.contains('%')
            || path.contains('\\')
            || path.contains("//")
            || path.split('/').any(|part| part.starts_with(".."))
        {
            return false;
        }
        self.paths.iter().any(|allowed| match allowed.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == allowed,
        })
    }
}

impl fmt::Display for RequestFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unrestricted() {
            return Ok(());
        }
        let words: Vec<&str> =
            self.methods.iter().chain(&self.paths).chain(&self.exact).map(String::as_str).collect();
        write!(f, " [{}]", words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::RequestFilter;
    use crate::policy::Rule;

    fn rule(json: &str) -> Result<Rule, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn methods_and_paths_narrow_a_rule() {
        let rule = rule(
            r#"{"host": "api.example.org:8443", "methods": ["GET", "HEAD"], "paths": ["/v1/*", "/health"]}"#,
        )
        .unwrap();
        let filter = rule.request_filter();
        assert!(filter.allows("GET", "/v1/users") && filter.allows("HEAD", "/health"));
        for (method, path) in [
            ("POST", "/v1/users"),
            ("GET", "/v2"),
            ("GET", "/v1/../v2"),
            ("GET", "/v1/..;/v2"),
            ("GET", "/v1/%2e%2e/v2"),
            ("GET", "/healthy"),
        ] {
            assert!(!filter.allows(method, path), "{method} {path}");
        }
        assert_eq!(rule.to_string(), "api.example.org:8443 [GET HEAD /v1/* /health]");
        let written = serde_json::to_string(&rule).unwrap();
        assert_eq!(serde_json::from_str::<Rule>(&written).unwrap(), rule);
    }

    #[test]
    fn request_rule_allows_exactly_one_request() {
        let one = RequestFilter::of_request("POST", "/v1/items").unwrap();
        assert!(one.allows("POST", "/v1/items"));
        assert!(!one.allows("GET", "/v1/items") && !one.allows("POST", "/v1/items/1"));
        // An ambiguous path does not allow anything else.
        for path in ["/a%20b", "/v2/%41", "/a/../b", "/a//b", "/all*"] {
            for method in ["POST", "patch", "M-SEARCH"] {
                let some = RequestFilter::of_request(method, path).unwrap();
                assert!(some.allows(method, path) && !some.allows("GET", path), "{method} {path}");
                assert!(!some.allows(method, "/secret/all") && !some.allows(method, "/all1"), "{path}");
            }
        }
        assert_eq!(RequestFilter::of_request("GET", &format!("/{}", "a".repeat(2000))), None);
    }

    #[test]
    fn invalid_rule_object_is_rejected_by_name() {
        for (json, part) in [
            (r#"{"host": "a.example", "methods": ["get"]}"#, "get"),
            (r#"{"host": "a.example", "paths": ["v1"]}"#, "v1"),
            (r#"{"host": "a.example", "paths": ["/a/*/b"]}"#, "/a/*/b"),
            (r#"{"host": "packages", "methods": ["GET"]}"#, "packages"),
            (r#"{"host": "packages", "without_tls": true}"#, "packages"),
            (r#"{"host": "a.example", "without_tls": true, "paths": ["/a"]}"#, "two rules"),
            (r#"{"host": "a.example", "without_tls": "yes"}"#, "without_tls"),
            (r#"{"host": "*"}"#, "open"),
            (r#"{"hosts": "a.example"}"#, "host"),
        ] {
            let error = rule(json).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn an_object_without_limits_is_the_plain_rule() {
        for text in [r#"{"host": "a.example"}"#, r#"{"host": "a.example", "without_tls": false}"#] {
            assert_eq!(rule(text), rule(r#""a.example""#));
        }
        let text = r#"{"host":"a.example:22","without_tls":true}"#;
        assert_eq!(serde_json::to_string(&rule(text).unwrap()).unwrap(), text);
        assert_eq!(rule(text).unwrap().to_string(), "a.example:22 [without TLS]");
    }
}
