//! The data folder in trouble: its disk full, its database locked, a second server on it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use e2e::{Options, Server, binary, free_port, shell, wait_until};
use serde_json::json;
use tempfile::TempDir;

#[test]
fn a_second_server_on_the_same_folder_is_refused_and_the_first_goes_on() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("sleep 1; echo done")]);
    let second = Command::new(binary())
        .args(["serve", "--data"])
        .arg(server.data())
        .arg("--run-dir")
        .arg(server.folder().join("run2"))
        .args(["--listen", &format!("127.0.0.1:{}", free_port())])
        .output()
        .unwrap();
    let printed =
        String::from_utf8_lossy(&second.stdout).into_owned() + &String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success(), "{printed}");
    assert!(printed.contains("in use by another caisson server"), "{printed}");
    let status = job.wait_for("complete");
    assert_eq!(status["steps"][0]["attempts"], 1);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let server = Server::start();
    let other = TempDir::new().unwrap();
    let second = Command::new(binary())
        .args(["serve", "--data"])
        .arg(other.path().join("data"))
        .arg("--run-dir")
        .arg(other.path().join("run"))
        .args(["--listen", &format!("127.0.0.1:{}", server.port)])
        .output()
        .unwrap();
    let printed =
        String::from_utf8_lossy(&second.stdout).into_owned() + &String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success(), "{printed}");
    assert!(printed.contains(&server.port.to_string()), "{printed}");
}

/// A small disk of its own, for a data folder.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    fn new(mebibytes: u32) -> Self {
        let folder = tempfile::Builder::new().prefix("caisson-disk-").tempdir().unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
            .arg(folder.path())
            .status();
        assert!(status.unwrap().success(), "mounting a small disk needs root");
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    fn filler(&self) -> PathBuf {
        self.folder.path().join("filler")
    }

    /// Writes until nothing more fits.
    fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        for size in [1 << 20, 4096, 1] {
            let block = vec![7; size];
            while file.write_all(&block).is_ok() {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}

#[test]
fn a_full_disk_is_named_and_nothing_is_lost() {
    let disk = SmallDisk::new(256);
    let server = Server::start_with(Options { data: Some(disk.path()), ..Options::default() });
    let before = server.schedule_steps(&[shell("echo before > before.txt")]);
    before.wait_for("complete");
    disk.fill();
    // A little may still fit into space that is already allotted; the disk must be noticed soon.
    let body = json!({"steps": [{"tool": "write_file", "path": "f", "content": "x".repeat(200_000)}]});
    let mut accepted = Vec::new();
    let refused = loop {
        let answer = server.post("/schedule", &body);
        if answer.status != 202 {
            break answer;
        }
        accepted.push(answer.json()["job_id"].as_str().unwrap().to_owned());
        assert!(accepted.len() < 200, "200 jobs were accepted on a full disk");
    };
    refused.expect_problem(507, "server_disk_full");
    assert_eq!(before.output().text("before.txt"), "before\n");
    disk.free();
    let after = server.schedule_steps(&[shell("echo after > after.txt")]);
    after.wait_for("complete");
    for id in accepted {
        server.job(&id).wait_for("complete");
    }
    server.assert_nothing_left();
}

#[test]
fn a_job_that_runs_while_the_disk_is_full_goes_on_when_there_is_space() {
    let disk = SmallDisk::new(256);
    let server = Server::start_with(Options { data: Some(disk.path()), ..Options::default() });
    let print = "echo ready; until [ -e go ]; do sleep 0.05; done; for n in $(seq 20000); do echo line $n of some length; done";
    let job = server.schedule_steps(&[shell(print), shell("echo done > done.txt")]);
    let mut events = job.follow();
    events.until("the first output", |event| event.is("call_output"));
    job.put_file("go", "");
    disk.fill();
    let _ = server.post("/schedule", &json!({"steps": [shell("true")]}));
    disk.free();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert_eq!(events.output("step-1.1", "stdout").lines().count(), 20_001);
    assert_eq!(job.output().text("done.txt"), "done\n");
    server.assert_nothing_left();
}

/// Another process that has locked the database.
struct Lock {
    process: Child,
}

impl Lock {
    fn take(database: &Path) -> Self {
        let code = "import sqlite3, sys\n\
                    c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)\n\
                    c.execute('BEGIN IMMEDIATE')\nprint('locked', flush=True)\nsys.stdin.read()";
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", code]).arg(database).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("python3 is missing: apt-get install python3");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        Self { process }
    }

    fn release(mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}

#[test]
fn a_locked_database_is_named_and_nothing_is_lost() {
    let server = Server::start();
    let database = server.data().join("caisson.db");
    assert!(database.is_file(), "{} is missing", database.display());
    let running =
        server.schedule_steps(&[shell("echo ready; until [ -e go ]; do sleep 0.05; done; seq 1000")]);
    let mut events = running.follow();
    events.until("the first output", |event| event.is("call_output"));
    let lock = Lock::take(&database);
    let refused = server.post("/schedule", &json!({"steps": [shell("true")]}));
    refused.expect_problem(503, "store_busy");
    assert_ne!(refused.header("retry-after"), "");
    server.get(&format!("/status/{}", running.id)).expect(200);
    lock.release();
    server.schedule_steps(&[shell("true")]).wait_for("complete");
    running.put_file("go", "");
    events.until_end();
    assert_eq!(running.status()["status"], "complete", "{}", events.summary());
    assert_eq!(events.output("step-1.1", "stdout").lines().count(), 1001);
    server.assert_nothing_left();
}

#[test]
fn old_jobs_are_removed_and_a_running_one_never() {
    let server = Server::start();
    let draft = server.schedule(&json!({"steps": [shell("true")], "start": false}));
    draft.put_file("given", "x").expect(200);
    let old = server.schedule_steps(&[shell("echo old > old.txt")]);
    old.wait_for("complete");
    let running = server.schedule_steps(&[shell("until [ -e stop ]; do sleep 0.1; done")]);
    running.follow().until("the start of the step", |event| event.is("call_started"));
    server.stop();
    std::fs::write(server.folder().join("caisson.toml"), "[retention]\ndays = 0\n").unwrap();
    server.restart();
    running.touch("stop");
    running.wait_for("complete");
    for gone in [&old, &draft] {
        wait_until("the old job is removed", || server.get(&format!("/v1/jobs/{}", gone.id)).status == 404);
        let folder = server.data().join("jobs").join(&gone.id);
        wait_until("its folder is removed", || !folder.exists());
    }
}
