//! Error output for scripts when a command fails.

use e2e::{Options, Server, free_port};
use serde_json::{Value, json};

use crate::cli_command::{Outcome, command, finish, typed};

/// The single line of JSON on standard error.
#[track_caller]
fn error(outcome: &Outcome) -> Value {
    assert_eq!(outcome.stdout, "");
    serde_json::from_str(&outcome.stderr).unwrap_or_else(|error| panic!("{error}: {}", outcome.stderr))
}

#[test]
fn json_flag_prints_errors_as_json_with_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let told =
        |words: &[&str], code| error(&finish(command(folder.path(), words), "").expect(code))["code"].clone();
    assert_eq!(told(&["jobs", "--json", "--url", &nobody], 2), "no_server");
    assert_eq!(told(&["sandboxes", "--json", "list", "--url", &nobody], 2), "no_server");
    assert_eq!(told(&["exec", "--json", "--url", &nobody, "1c2d4e6f", "true"], 125), "no_server");
    assert_eq!(told(&["jobs", "--json", "--limit", "many"], 2), "usage");
    assert_eq!(told(&["image", "export", "nope", "--tar", "x", "--json"], 2), "failed");
    std::fs::write(folder.path().join("wrong.toml"), "[limits]\nmemory_mib = 1\n").unwrap();
    assert_eq!(told(&["doctor", "--json", "--config", "wrong.toml"], 2), "configuration");

    let server = Server::start();
    let missing = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
    let told = error(&typed(&server, &["status", missing, "--json"]).expect(2));
    assert_eq!(told["code"], "job_not_found");
    assert!(told["message"].as_str().unwrap().contains(missing), "{told}");
}

#[test]
fn serve_says_why_it_cannot_listen() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    // An address that documentation may use and no machine has.
    for (address, why) in
        [(taken.as_str(), "another program uses the port"), ("192.0.2.1:8000", "does not have the address")]
    {
        let words = ["serve", "--insecure-listen", "--run-dir", "run", "--listen", address];
        finish(command(folder.path(), &words), "").expect_message(2, &[address, why, "--listen"]);
    }
}

#[test]
fn exit_codes_distinguish_cli_failures_from_command_failures() {
    let server = Server::start();
    let id = server.create_sandbox(&json!({})).id.clone();
    typed(&server, &["exec", &id, "exit 2"]).expect(2);
    typed(&server, &["exec", "--timeout", "0.2", "--json", &id, "sleep 600"]).expect(125);
    typed(&server, &["exec", "--nonsense", &id, "true"]).expect(125);
    typed(&server, &["exec", "01930d5e", "true"]).expect_message(125, &["01930d5e"]);
    typed(&server, &["attach", "01930d5e"]).expect(125);
}

#[test]
fn paginated_lists_resume_at_the_cursor() {
    let server =
        Server::start_with(Options { config: "[jobs]\nmax_running = 1\n".into(), ..Options::default() });
    let jobs: Vec<String> = (0..3).map(|_| server.schedule_steps(&[e2e::shell("true")]).id.clone()).collect();
    let first = typed(&server, &["jobs", "--limit", "2"]).expect(0);
    let last = &jobs[1][28..];
    assert!(first.stdout.contains(last) && !first.stdout.contains(&jobs[0][28..]), "{}", first.stdout);
    assert!(first.stderr.contains(&format!("--after {last}")), "{}", first.stderr);
    let rest = typed(&server, &["jobs", "--limit", "2", "--after", last]).expect(0);
    assert!(rest.stdout.contains(&jobs[0][28..]) && !rest.stdout.contains(last), "{}", rest.stdout);
    assert_eq!(rest.stderr, "");
    let page = typed(&server, &["jobs", "--json", "--after", &jobs[2]]).expect(0).json();
    assert_eq!(page["jobs"].as_array().unwrap().len(), 2, "{page:#}");
}
