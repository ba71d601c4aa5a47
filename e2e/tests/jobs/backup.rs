//! Backups while jobs run: what a restore contains, and that a backup does not disturb the server.

use std::path::Path;
use std::process::{Command, Output};

use e2e::{Options, Server, binary, shell};
use serde_json::json;

fn caisson(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().unwrap()
}

#[track_caller]
fn back_up(server: &Server, archive: &Path) {
    let (data, archive) = (server.data(), archive.to_str().unwrap());
    let config = server.folder().join("caisson.toml");
    let arguments =
        ["backup", archive, "--data", data.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let output = caisson(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Starts a server on a restored data folder.
#[track_caller]
fn restore(archive: &Path) -> Server {
    let server = Server::prepare(Options::default());
    let data = server.data();
    let output = caisson(&["restore", archive.to_str().unwrap(), "--data", data.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.restart();
    server
}

#[test]
fn backup_with_running_jobs_continues_on_another_server() {
    let first = Server::start();
    let over = first.schedule_steps(&[shell("echo kept > kept.txt")]);
    over.wait_for("complete");
    let steps = [
        shell("echo one >> log.txt; sleep 2.1"),
        shell("echo two >> log.txt; while [ ! -e go ]; do sleep 0.05; done; echo two ends >> log.txt"),
    ];
    let running = first.schedule_steps(&steps);
    let careful = first
        .schedule(&json!({"steps": [shell("while [ ! -e go ]; do sleep 0.05; done")], "on_loss": "fail"}));
    let mut events = running.follow();
    events.until("the checkpoint", |event| event.is("checkpoint"));
    events.until("the start of step 2", |event| event.is("call_started") && event.call() == "step-2.1");
    careful.follow().until("its start", |event| event.is("call_started"));
    let archive = first.folder().join("backup.tar.zst");
    back_up(&first, &archive);

    let second = restore(&archive);
    assert_eq!(second.job(&over.id).output().text("kept.txt"), "kept\n");
    second.job(&careful.id).wait_for_failure("sandbox_lost");
    let taken_up = second.job(&running.id);
    let mut restored = taken_up.follow();
    restored.until("its second attempt", |event| event.is("call_started") && event.call() == "step-2.2");
    taken_up.touch("go");
    restored.until_end();
    assert_eq!(taken_up.status()["status"], "complete", "{}", restored.summary());
    assert_eq!(taken_up.output().text("log.txt"), "one\ntwo\ntwo ends\n", "{}", restored.summary());
    assert_eq!(restored.count(|event| event.is("call_started") && event.call().starts_with("step-1")), 1);

    // The first server still has its sandboxes: the second one has not touched them.
    for job in [&running, &careful] {
        job.touch("go");
        let status = job.wait_for("complete");
        assert!(status["steps"].as_array().unwrap().iter().all(|step| step["attempts"] == 1), "{status}");
    }
    assert_eq!(running.output().text("log.txt"), "one\ntwo\ntwo ends\n");
    second.assert_nothing_left();
    first.assert_nothing_left();
}

#[test]
fn backups_of_a_busy_server_are_consistent() {
    let first = Server::start();
    let jobs: Vec<_> = (0..40).map(|n| first.schedule_steps(&[shell(&format!("echo {n} > n"))])).collect();
    let archives: Vec<_> = (0..3).map(|n| first.folder().join(format!("backup-{n}"))).collect();
    for archive in &archives {
        back_up(&first, archive);
    }
    let second = restore(&archives[2]);
    for (n, job) in jobs.iter().enumerate() {
        let restored = second.job(&job.id);
        restored.wait_for("complete");
        assert_eq!(restored.output().text("n"), format!("{n}\n"));
        job.wait_for("complete");
    }
    second.assert_nothing_left();
}

#[test]
fn restore_into_a_folder_in_use_is_refused() {
    let server = Server::start();
    let archive = server.folder().join("backup.tar.zst");
    back_up(&server, &archive);
    let data = server.data();
    let output = caisson(&["restore", archive.to_str().unwrap(), "--data", data.to_str().unwrap()]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("in use by another caisson server"), "{printed}");
    server.schedule_steps(&[shell("true")]).wait_for("complete");
}
