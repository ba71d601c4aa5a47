//! The permission of every operation in the OpenAPI document: each caller gets exactly what the role allows.

use std::time::Duration;

use e2e::{Options, source};
use reqwest::Method;
use serde_json::{Value, json};

use crate::keyed_server::{Keyed, start};

/// The permission an operation needs. This test has its own table: an operation that is missing in it fails the
/// tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permission {
    Nothing,
    Read,
    ReadServer,
    Submit,
    Change,
    Admin,
}

impl Permission {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Read => "read",
            Self::ReadServer => "read_server",
            Self::Submit => "submit",
            Self::Change => "change",
            Self::Admin => "admin",
        }
    }
}

const TABLE: [(Permission, &[&str]); 6] = [
    (
        Permission::Nothing,
        &[
            "get /",
            "get /docs",
            "get /healthz",
            "get /openapi.json",
            "get /readyz",
            "get /share/{link}",
            "get /v1/login",
            "get /v1/login/callback",
            "get /v1/session",
            "post /v1/session",
            "delete /v1/session",
        ],
    ),
    (
        Permission::Read,
        &[
            "get /jobs/{id}/output.zip",
            "get /status",
            "get /status/{id}",
            "get /v1/defaults",
            "get /v1/images",
            "get /v1/jobs",
            "get /v1/jobs/{id}",
            "get /v1/jobs/{id}/artifacts",
            "get /v1/jobs/{id}/context",
            "get /v1/jobs/{id}/downloads/{name}",
            "get /v1/jobs/{id}/log",
            "get /v1/jobs/{id}/requests",
            "get /v1/jobs/{id}/start/{path}",
            "get /v1/models",
            "get /v1/sandboxes",
            "get /v1/sandboxes/{id}",
            "get /v1/usage",
        ],
    ),
    (Permission::ReadServer, &["get /metrics", "get /v1/doctor"]),
    (
        Permission::Submit,
        &[
            "post /schedule",
            "post /submit",
            "post /v1/demo",
            "post /v1/jobs",
            "post /v1/jobs/{id}/retry",
            "post /v1/sandboxes",
        ],
    ),
    (
        Permission::Change,
        &[
            "delete /v1/jobs/{id}",
            "post /v1/jobs/{id}/cancel",
            "post /v1/jobs/{id}/extend",
            "post /v1/jobs/{id}/handback",
            "post /v1/jobs/{id}/message",
            "post /v1/jobs/{id}/pause",
            "post /v1/jobs/{id}/requests/{request}",
            "post /v1/jobs/{id}/resume",
            "post /v1/jobs/{id}/start",
            "post /v1/jobs/{id}/takeover",
            "delete /v1/sandboxes/{id}",
            "post /v1/sandboxes/{id}/extend",
        ],
    ),
    (
        Permission::Admin,
        &[
            "get /v1/access-log",
            "get /v1/keys",
            "post /v1/keys",
            "delete /v1/keys/{name}",
            "put /v1/models/choice",
            "delete /v1/models/choice",
            "post /v1/models/test",
        ],
    ),
];

/// Paths that exist below both `/v1/jobs/{id}` and `/v1/sandboxes/{id}`.
const BELOW_BOTH: [(Permission, &[&str]); 2] = [
    (
        Permission::Read,
        &[
            "get /audit",
            "get /audit/files",
            "get /audit/heads",
            "get /desktop",
            "get /desktop/socket",
            "get /desktop/state",
            "get /events",
            "get /files",
            "get /files/{path}",
            "get /kernels",
            "get /network",
            "get /pictures/{digest}",
            "get /ports",
            "get /screenshot",
            "get /shares",
            "get /stats",
            "get /stats/history",
        ],
    ),
    (
        Permission::Change,
        &[
            "post /code",
            "post /exec",
            "get /exec/stream",
            "put /files/{path}",
            "post /files/{path}",
            "delete /files/{path}",
            "post /input",
            "post /kernels/{name}/interrupt",
            "post /kernels/{name}/restart",
            "get /ports/{port}",
            "post /shares",
            "delete /shares/{share}",
            "get /terminal",
        ],
    ),
];

fn needs(method: &str, path: &str) -> Permission {
    let below = ["/v1/jobs/{id}/", "/v1/sandboxes/{id}/"].iter().find_map(|start| path.strip_prefix(start));
    let below = below.map(|rest| format!("{method} /{rest}"));
    let whole = format!("{method} {path}");
    let of_both =
        BELOW_BOTH.iter().filter(|(_, lines)| below.as_deref().is_some_and(|line| lines.contains(&line)));
    let of_one = TABLE.iter().filter(|(_, lines)| lines.contains(&whole.as_str()));
    let found: Vec<Permission> = of_one.chain(of_both).map(|(needs, _)| *needs).collect();
    let [needs] = found[..] else { panic!("{whole} stands {} times in the table of this test", found.len()) };
    needs
}

struct Operation {
    method: Method,
    path: String,
    needs: Permission,
}

impl Operation {
    /// The path with its parameters filled in.
    fn path_for(&self, job: &str, sandbox: &str) -> String {
        let id = if self.path.starts_with("/v1/sandboxes") { sandbox } else { job };
        let filled = [
            ("{id}", id),
            ("{request}", "1"),
            ("{name}", "python3"),
            ("{port}", "9"),
            ("{path}", "a.txt"),
            ("{link}", "x.1.y"),
            ("{share}", "0f"),
            ("{digest}", "0000000000000000000000000000000000000000000000000000000000000000"),
        ];
        let path = filled.iter().fold(self.path.clone(), |path, (name, value)| path.replace(name, value));
        assert!(!path.contains('{'), "{path} has a part that this test does not know");
        if self.path == "/status" { format!("{path}?task_id={job}") } else { path }
    }

    /// The same path with the first digit of the id percent-encoded; `None` for a path without an id.
    fn path_with_encoded_id(&self, job: &str, sandbox: &str) -> Option<String> {
        let [job, sandbox] = [job, sandbox].map(|id| format!("%{:02x}{}", id.as_bytes()[0], &id[1..]));
        self.has_id().then(|| self.path_for(&job, &sandbox))
    }

    fn has_id(&self) -> bool {
        self.path.contains("{id}") || self.path == "/status"
    }
}

/// All operations; those that remove something come last.
fn operations() -> Vec<Operation> {
    let text = std::fs::read_to_string(source::root().join("docs/openapi.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let needs = needs(method, path);
            assert_eq!(
                operation["x-required-permission"],
                json!(needs.name()),
                "{method} {path} of the document"
            );
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            all.push(Operation { method, path: path.clone(), needs });
        }
    }
    let lines = |table: &[(Permission, &[&str])]| table.iter().map(|(_, lines)| lines.len()).sum::<usize>();
    assert_eq!(
        all.len(),
        lines(&TABLE) + 2 * lines(&BELOW_BOTH),
        "the table has operations that are not there"
    );
    all.sort_by_key(|operation| {
        let ends_it = operation.method == Method::DELETE && operation.path.ends_with("{id}");
        (ends_it, operation.path.ends_with("/cancel"), operation.path.clone())
    });
    all
}

/// The error of the permission check that runs before all handlers; `None` if it let the request through.
fn permission_error(
    keyed: &Keyed,
    key: Option<&str>,
    operation: &Operation,
    path: &str,
) -> Option<(u16, String)> {
    let mut request = keyed.server.request(operation.method.clone(), path).timeout(Duration::from_secs(60));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let what = format!("{} {path}", operation.method);
    let response = request.send().unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let status = response.status().as_u16();
    if status < 400 {
        // Some of these response bodies have no end.
        return None;
    }
    let problem: Value = response.json().unwrap_or_else(|error| panic!("{what}: {error}"));
    let code = problem["code"].as_str().unwrap_or_default().to_owned();
    let of_the_check = matches!(
        code.as_str(),
        "key_missing" | "key_unknown" | "role_too_weak" | "job_not_found" | "sandbox_not_found"
    );
    of_the_check.then_some((status, code))
}

/// Creates a job that has ended and a running sandbox.
fn create_job_and_sandbox(keyed: &Keyed, key: &str) -> (String, String) {
    let job = keyed.schedule(key, "echo text > a.txt");
    keyed.wait_for(&job, "complete");
    let sandbox = keyed.post(key, "/v1/sandboxes", &json!({})).expect(201).json();
    (job, sandbox["sandbox_id"].as_str().unwrap().to_owned())
}

#[test]
fn every_operation_is_allowed_only_to_permitted_roles_and_owners() {
    let keyed = start(Options::default());
    let viewer = keyed.key("viewer", "viewer", &json!({}));
    let stranger = keyed.key("stranger", "submitter", &json!({}));
    let (job, sandbox) = create_job_and_sandbox(&keyed, &keyed.admin);
    let weak = Some((403, "role_too_weak".to_owned()));
    let operations = operations();
    let ways = operations.iter().flat_map(|operation| {
        let plain = operation.path_for(&job, &sandbox);
        let other = operation.path_with_encoded_id(&job, &sandbox);
        std::iter::once(plain).chain(other).map(move |path| (operation, path))
    });
    for (operation, path) in ways {
        let what = format!("{} {path}", operation.method);

        let expected = (operation.needs != Permission::Nothing).then(|| (401, "key_missing".to_owned()));
        assert_eq!(permission_error(&keyed, None, operation, &path), expected, "nobody: {what}");
        let wrong = format!("caisson_{}", "0".repeat(64));
        let expected = Some((401, "key_unknown".to_owned()));
        assert_eq!(permission_error(&keyed, Some(&wrong), operation, &path), expected, "a wrong key: {what}");

        let looks =
            matches!(operation.needs, Permission::Nothing | Permission::Read | Permission::ReadServer);
        let expected = if looks { None } else { weak.clone() };
        assert_eq!(permission_error(&keyed, Some(&viewer), operation, &path), expected, "a viewer: {what}");

        let expected = match operation.needs {
            Permission::Admin | Permission::ReadServer => weak.clone(),
            _ if operation.path.starts_with("/v1/sandboxes/") => Some((404, "sandbox_not_found".to_owned())),
            _ if operation.has_id() => Some((404, "job_not_found".to_owned())),
            _ => None,
        };
        assert_eq!(
            permission_error(&keyed, Some(&stranger), operation, &path),
            expected,
            "a stranger: {what}"
        );
    }
    // A query that names one's own job and another caller's job needs permission for both.
    let own = keyed.schedule(&stranger, "true");
    keyed.get(&stranger, &format!("/status?job_id={own}")).expect(200);
    for query in [
        format!("job_id={own}&task_id={job}"),
        format!("task_id={own}&job_id={job}"),
        format!("job_id={own}&%74ask_id={job}"),
        format!("task_id={job}"),
    ] {
        keyed.get(&stranger, &format!("/status?{query}")).expect_problem(404, "job_not_found");
    }
    keyed.get(&keyed.admin, &format!("/v1/jobs/{job}")).expect(200);
    let sandbox = keyed.get(&keyed.admin, &format!("/v1/sandboxes/{sandbox}")).expect(200).json();
    assert_eq!(sandbox["status"], "running", "nothing was done by who may not");
}

#[test]
fn every_permitted_role_passes_the_permission_check() {
    let keyed = start(Options::default());
    let operator = keyed.key("operator", "operator", &json!({}));
    let owner = keyed.key("owner", "submitter", &json!({}));
    for (who, key) in [("operator", &operator), ("owner", &owner), ("admin", &keyed.admin)] {
        let (job, sandbox) = create_job_and_sandbox(&keyed, if who == "operator" { &owner } else { key });
        for operation in operations().iter().filter(|operation| operation.path != "/v1/keys/{name}") {
            let path = operation.path_for(&job, &sandbox);
            let expected = match (operation.needs, who) {
                (Permission::Admin, "operator" | "owner") | (Permission::ReadServer, "owner") => {
                    Some((403, "role_too_weak".to_owned()))
                }
                _ => None,
            };
            assert_eq!(
                permission_error(&keyed, Some(key), operation, &path),
                expected,
                "{who}: {} {path}",
                operation.method
            );
        }
        keyed.get(&keyed.admin, &format!("/v1/jobs/{job}")).expect_problem(404, "job_not_found");
    }
}
