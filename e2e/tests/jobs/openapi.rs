//! Tests the API against its OpenAPI document: schemathesis generates valid and invalid requests for every operation
//! and compares the responses with the document. All checks are on; `e2e/schemathesis.toml` lists the exceptions.

use std::path::Path;
use std::process::Command;

use e2e::Server;
use serde_json::json;

/// Generated requests per operation; `./test api` uses more.
const EXAMPLES: &str = "12";
/// Without API keys every request is allowed, which is not a bug.
const WITHOUT_KEYS: [&str; 2] = ["--exclude-checks", "ignored_auth"];

#[test]
fn responses_match_the_openapi_document() {
    let server = Server::start();
    try_all(&server, "examples,coverage,fuzzing", &WITHOUT_KEYS);
}

/// Additionally checks that missing and wrong keys are rejected, and that requests use what earlier requests created.
#[test]
fn responses_match_the_openapi_document_with_keys_required() {
    let server = Server::start();
    let made = server.post("/v1/keys", &json!({"name": "root", "role": "admin"})).expect(201).json();
    let key = format!("Authorization: Bearer {}", made["secret"].as_str().expect("a secret"));
    try_all(&server, "coverage,stateful", &["--header", &key]);
}

#[track_caller]
fn try_all(server: &Server, phases: &str, more: &[&str]) {
    let program = std::env::var("CAISSON_TEST_SCHEMATHESIS").unwrap_or_else(|_| "schemathesis".into());
    assert!(
        Command::new(&program).arg("--version").output().is_ok_and(|output| output.status.success()),
        "{program} is missing: ./test installs it from PyPI (pip install schemathesis) and names it in CAISSON_TEST_SCHEMATHESIS"
    );
    let folder = tempfile::tempdir().unwrap();
    let examples = std::env::var("CAISSON_TEST_API_EXAMPLES").unwrap_or_else(|_| EXAMPLES.into());
    let output = Command::new(&program)
        .arg("--config-file")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("schemathesis.toml"))
        .args(["run", &server.url("/openapi.json"), "--checks", "all", "--no-color", "--phases", phases])
        .args(["--max-examples", &examples, "--request-timeout", "60"])
        .args(more)
        // A run must not be influenced by the findings of the previous one.
        .current_dir(folder.path())
        .env("NO_PROXY", "*")
        .env("no_proxy", "*")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let tried = said.lines().filter(|line| line.contains("passed")).count();
    assert!(tried >= phases.split(',').count() - 1, "{said}");
    server.get("/healthz").expect(200);
}
