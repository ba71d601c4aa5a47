//! Jobs that the server cannot run: they fail with a code, and other jobs continue.

use std::process::Command;

use e2e::{Server, shell, wait_until};
use serde_json::json;

#[test]
fn job_whose_folder_cannot_be_created_fails_without_affecting_others() {
    let server = Server::start();
    let accepted = server.post("/v1/jobs", &json!({"start": false, "steps": [shell("true")]})).expect(202);
    let job = server.job(accepted.json()["job_id"].as_str().unwrap());
    std::fs::write(server.data().join("jobs").join(&job.id), "in the way").unwrap();
    job.post("start", &json!({})).expect(202);
    let status = job.wait_for_failure("io_failed");
    assert!(status["reason"].as_str().unwrap().contains(&job.id), "{status}");
    server.schedule_steps(&[shell("true")]).wait_for("complete");
    server.assert_nothing_left();
}

#[test]
fn job_with_a_damaged_log_fails_and_its_sandbox_is_removed() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("echo ready; sleep 600")]);
    job.follow().until("the first output", |event| event.is("call_output"));
    server.kill9();
    let damage = format!(
        "import sqlite3, sys\n\
         store = sqlite3.connect(sys.argv[1])\n\
         store.execute(\"UPDATE events SET payload = 'garbage' WHERE kind = 'call_started' AND job = '{}'\")\n\
         assert store.total_changes == 1\n\
         store.commit()\n",
        job.id
    );
    let database = server.data().join("caisson.db");
    let damaged = Command::new("python3").arg("-c").arg(damage).arg(database).output().unwrap();
    assert!(damaged.status.success(), "{}", String::from_utf8_lossy(&damaged.stderr));
    server.restart();
    // The event stream of a damaged log has no end event.
    wait_until("the job is over", || job.status()["status"] == "failed");
    let status = job.status();
    assert_eq!(status["code"], "store_unreadable", "{status}");
    assert!(status["reason"].as_str().unwrap().contains("an event"), "{status}");
    server.schedule_steps(&[shell("true")]).wait_for("complete");
    server.assert_nothing_left();
}
