//! Inspecting jobs and their output.

use e2e::{Archive, Server};
use serde_json::json;

use crate::cli_command::typed;

#[test]
fn cli_lists_shows_fetches_and_deletes_a_job() {
    let server = Server::start();
    let steps = json!([{"tool": "shell", "command": "echo hello | tee hello.txt"}]);
    let job = server.schedule(&json!({"steps": steps, "name": "first", "labels": {"project": "demo"}}));
    job.wait_for("complete");
    let end = &job.id[28..];

    let table = typed(&server, &["jobs", "--label", "project=demo"]).expect(0).stdout;
    assert!(table.starts_with("ID ") && table.contains(end) && table.contains("complete  1/1"), "{table}");
    assert_eq!(typed(&server, &["jobs", "--state", "failed"]).expect(0).stdout, "no jobs\n");
    let page = typed(&server, &["jobs", "--json", "--limit", "1"]).expect(0).json();
    assert_eq!(page["jobs"][0]["job_id"], job.id.as_str());

    let status = typed(&server, &["status", end]).expect(0).stdout;
    assert!(status.contains("state    complete") && status.contains("succeeded"), "{status}");
    assert_eq!(typed(&server, &["status", end, "--json"]).expect(0).json()["name"], "first");

    let log = typed(&server, &["logs", end]).expect(0).stdout;
    assert!(log.contains("echo hello"), "{log}");
    let followed = typed(&server, &["logs", "--follow", end]).expect(0).stdout;
    assert!(followed.contains("[1/1] shell echo hello"), "{followed}");
    let events = typed(&server, &["logs", "--json", end]).expect(0).lines();
    assert_eq!(events[0]["kind"], "job_created");

    let said = typed(&server, &["download", end, "--out", "result", "--json"]).expect(0).json();
    assert_eq!(said["path"], "result/output.zip");
    let mut zip = Archive::open(std::fs::read(server.folder().join("result/output.zip")).unwrap());
    assert_eq!(zip.text("hello.txt"), "hello\n");
    typed(&server, &["cp", &format!("{end}:hello.txt"), "fetched.txt"]).expect(0);
    assert_eq!(std::fs::read_to_string(server.folder().join("fetched.txt")).unwrap(), "hello\n");

    typed(&server, &["rm", end]).expect(0);
    typed(&server, &["status", end]).expect_message(2, &["there is no job", "caisson jobs"]);
    typed(&server, &["status", &job.id]).expect_message(2, &["job_not_found"]);
}

#[test]
fn cli_retries_a_job_with_the_same_steps() {
    let server = Server::start();
    let job = server.schedule_steps(&[e2e::shell("exit 3")]);
    job.wait_for("failed");
    let again = typed(&server, &["retry", &job.id]).expect(0);
    assert_ne!(again.stdout.trim(), job.id);
    let followed = typed(&server, &["logs", "-f", again.stdout.trim()]).expect(1);
    assert!(followed.stdout.contains("shell exit 3"), "{}", followed.stdout);
}

#[test]
fn cli_explains_why_a_job_is_not_ready() {
    let server = Server::start();
    let job = server.schedule_steps(&[e2e::shell("sleep 600")]);
    typed(&server, &["download", &job.id]).expect_message(2, &["not over"]);
    typed(&server, &["rm", &job.id]).expect_message(2, &["cancel"]);
    assert!(!server.folder().join(format!("caisson-{}", job.id)).exists(), "an empty folder was left");
    typed(&server, &["cancel", &job.id]).expect(0);
    typed(&server, &["logs", "-f", &job.id]).expect(3);
    typed(&server, &["cancel", &job.id]).expect_message(2, &["over"]);
    typed(&server, &["exec", &job.id, "true"]).expect_message(125, &["no sandbox"]);
}

#[test]
fn cli_rejects_malformed_ids_before_sending_them() {
    let server = Server::start();
    typed(&server, &["status", "../healthz"]).expect_message(2, &["not an id"]);
    typed(&server, &["status", "abc"]).expect_message(2, &["there is no job `abc`"]);
    typed(&server, &["jobs", "--state", "flying"]).expect_message(2, &["flying", "running"]);
}
