//! Inspecting jobs and their output.

use e2e::{Archive, Server};
use serde_json::json;

use crate::cli_command::typed;

#[test]
fn cli_lists_shows_fetches_and_deletes_a_job() {
    let server = Server::start();
    let steps = json!([{"tool": "shell", "command": "echo hello | tee hello.txt; echo oops >&2"}]);
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

    let opened = typed(&server, &["open", "first"]).expect(0).stdout;
    assert_eq!(opened, format!("{}\n", server.url(&format!("/#/jobs/{}", job.id))), "there is no browser");

    for words in [&["logs", "first"][..], &["logs", "-f", end], &["logs", "--tail", "2", end]] {
        let printed = typed(&server, words).expect(0);
        assert_eq!((printed.stdout.as_str(), printed.stderr.as_str()), ("hello\n", "oops\n"), "{words:?}");
    }
    assert_eq!(typed(&server, &["logs", "-f", "-n", "0", end]).expect(0).stdout, "");
    let log = typed(&server, &["logs", "--events", end]).expect(0).stdout;
    assert!(log.contains("echo hello"), "{log}");
    let followed = typed(&server, &["logs", "--follow", "--events", end]).expect(0).stdout;
    assert!(followed.contains("[1/1] shell echo hello"), "{followed}");
    let events = typed(&server, &["logs", "--json", end]).expect(0).lines();
    assert_eq!(events[0]["kind"], "job_created");

    for (out, path) in [("result", "result/output.zip"), ("result", "result/output.zip"), ("x.zip", "x.zip")]
    {
        let said = typed(&server, &["download", "first", "--out", out, "--json"]).expect(0).json();
        assert_eq!(said["path"], path);
        let mut zip = Archive::open(std::fs::read(server.folder().join(path)).unwrap());
        assert_eq!(zip.text("hello.txt"), "hello\n");
    }
    typed(&server, &["download", end, "--out", "x.zip"]).expect_message(2, &["x.zip exists", "--out"]);
    let memory = typed(&server, &["download", end, "--file", "memory.json", "--out", "-"]).expect(0).stdout;
    assert!(memory.contains("echo hello"), "{memory}");
    let stored = typed(&server, &["download", end, "--all", "--out", "everything"]).expect(0).stdout;
    for name in ["output.zip", "manifest.json", "logs/agent.log", "audit/files.jsonl", "memory.json"] {
        let path = format!("everything/{name}");
        assert!(stored.lines().any(|line| line == path) && server.folder().join(&path).is_file(), "{stored}");
    }
    typed(&server, &["download", end, "--file", "secret"]).expect_message(2, &["manifest.json"]);
    typed(&server, &["cp", &format!("{end}:hello.txt"), "fetched.txt"]).expect(0);
    assert_eq!(std::fs::read_to_string(server.folder().join("fetched.txt")).unwrap(), "hello\n");

    typed(&server, &["rm", end]).expect(0);
    typed(&server, &["status", end]).expect_message(2, &["no job", "caisson jobs"]);
    typed(&server, &["status", &job.id]).expect_message(2, &["job_not_found"]);
}

#[test]
fn cli_retries_a_job_with_the_same_steps() {
    let server = Server::start();
    let job = server.schedule_steps(&[e2e::shell("exit 3")]);
    job.wait_for("failed");
    let again = typed(&server, &["retry", &job.id]).expect(0);
    assert_ne!(again.stdout.trim(), job.id);
    let followed = typed(&server, &["logs", "-f", "--events", again.stdout.trim()]).expect(1);
    assert!(followed.stdout.contains("shell exit 3"), "{}", followed.stdout);
}

#[test]
fn cli_explains_why_a_job_is_not_ready() {
    let server = Server::start();
    let job = server.schedule_steps(&[e2e::shell("sleep 600")]);
    typed(&server, &["download", &job.id]).expect_message(2, &["has not ended"]);
    typed(&server, &["rm", &job.id]).expect_message(2, &["cancel"]);
    let extended = typed(&server, &["extend", &job.id[28..], "30m"]).expect(0).stdout;
    assert!(extended.contains("may work for 1h 30m in total"), "{extended}");
    typed(&server, &["extend", &job.id, "60d"]).expect_message(2, &["is not between"]);
    assert!(!server.folder().join(format!("caisson-{}", job.id)).exists(), "an empty folder was left");
    typed(&server, &["cancel", &job.id]).expect(0);
    typed(&server, &["logs", "-f", &job.id]).expect(3);
    typed(&server, &["cancel", &job.id]).expect_message(2, &["has ended"]);
    typed(&server, &["extend", &job.id, "30m"]).expect_message(2, &["cannot be extended"]);
    typed(&server, &["exec", &job.id, "true"]).expect_message(125, &["no running sandbox"]);
}

#[test]
fn cli_refuses_unknown_ids_and_names() {
    let server = Server::start();
    typed(&server, &["status", "../healthz"]).expect_message(2, &["no job `../healthz`"]);
    typed(&server, &["status", ""]).expect_message(2, &["neither an id nor a name"]);
    typed(&server, &["status", "abc"]).expect_message(2, &["no job `abc`"]);
    typed(&server, &["jobs", "--state", "flying"]).expect_message(2, &["flying", "running"]);
}
