//! Tests the API against its OpenAPI document: schemathesis generates valid and invalid requests for every operation
//! and compares the responses with the document. All checks are on; `e2e/schemathesis.toml` lists the exceptions, and
//! `e2e/schemathesis_checks.py` the refusals that no schema can express.

use std::path::Path;
use std::process::Command;

use e2e::{Options, Server};
use serde_json::json;

/// Generated requests per operation; `./test api` uses more.
const EXAMPLES: &str = "12";
/// Without API keys every request is allowed, which is not a bug. The first key would end that.
const WITHOUT_KEYS: [&str; 4] = ["--exclude-checks", "ignored_auth", "--exclude-operation-id", "add_key"];
/// The first two end the sandbox. The others start a desktop, which the image lacks: each time they wait for it in vain.
const NOT_IN_A_SANDBOX: [&str; 5] =
    ["delete_sandbox", "extend_sandbox", "sandbox_input", "sandbox_screenshot", "sandbox_desktop_state"];
/// Valid jobs are accepted; there is no need to run more than one at a time.
/// The configuration names a model, so that no generated choice makes the server connect to some address.
const CONFIG: &str = "[jobs]\nmax_running = 1\n[model]\nname = \"http://127.0.0.1:9/v1\"\n";

#[test]
fn responses_match_the_openapi_document() {
    let server = start();
    try_all(&server, "examples,coverage,fuzzing", &WITHOUT_KEYS);
}

/// Additionally checks that missing and wrong keys are rejected, and that requests use what earlier requests created.
#[test]
fn responses_match_the_openapi_document_with_keys_required() {
    let server = start();
    let made = server.post("/v1/keys", &json!({"name": "root", "role": "admin"})).expect(201).json();
    let key = format!("Authorization: Bearer {}", made["secret"].as_str().expect("a secret"));
    try_all(&server, "coverage,stateful", &["--header", &key]);
}

/// For operations on a sandbox: a made-up id would end most requests before their body is read.
#[test]
fn responses_match_the_openapi_document_for_a_running_sandbox() {
    let server = start();
    let sandbox = server.create_sandbox(&json!({"ttl_s": 86_400}));
    let operations = ["--include-path-regex", r"^/v1/sandboxes/\{id\}", "--exclude-checks", "ignored_auth"];
    let excluded = NOT_IN_A_SANDBOX.iter().flat_map(|operation| ["--exclude-operation-id", operation]);
    let more: Vec<&str> = operations.into_iter().chain(excluded).collect();
    try_sandbox(&server, "coverage,fuzzing", &more, Some(&sandbox.id));
    let status = server.get(&format!("/v1/sandboxes/{}", sandbox.id)).expect(200).json()["status"].clone();
    assert_eq!(status, "running");
}

#[track_caller]
fn start() -> Server {
    Server::start_with(Options { config: CONFIG.into(), ..Options::default() })
}

#[track_caller]
fn try_all(server: &Server, phases: &str, more: &[&str]) {
    try_sandbox(server, phases, more, None);
}

/// Runs schemathesis. `sandbox` is the sandbox that valid requests name.
#[track_caller]
fn try_sandbox(server: &Server, phases: &str, more: &[&str], sandbox: Option<&str>) {
    let program = std::env::var("CAISSON_TEST_SCHEMATHESIS").unwrap_or_else(|_| "schemathesis".into());
    assert!(
        Command::new(&program).arg("--version").output().is_ok_and(|output| output.status.success()),
        "{program} is missing: ./test installs it from PyPI (pip install schemathesis) and names it in CAISSON_TEST_SCHEMATHESIS"
    );
    let folder = tempfile::tempdir().unwrap();
    let examples = std::env::var("CAISSON_TEST_API_EXAMPLES").unwrap_or_else(|_| EXAMPLES.into());
    let settings = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(&program)
        .arg("--config-file")
        .arg(settings.join("schemathesis.toml"))
        .args(["run", &server.url("/openapi.json"), "--checks", "all", "--no-color", "--phases", phases])
        .args(["--max-examples", &examples, "--request-timeout", "60", "--seed", "1"])
        .args(more)
        // A run must not be influenced by the findings of the previous one.
        .current_dir(folder.path())
        .envs(sandbox.map(|id| ("CAISSON_TEST_SANDBOX", id)))
        .env("SCHEMATHESIS_HOOKS", "schemathesis_checks")
        .env("PYTHONPATH", settings)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "*")
        .env("no_proxy", "*")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let tried = said.lines().filter(|line| line.contains("passed")).count();
    assert!(tried >= phases.split(',').count() - 1, "{said}");
    server.get("/healthz").expect(200);
}
