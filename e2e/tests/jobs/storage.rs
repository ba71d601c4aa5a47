//! Trouble with the data folder: its disk full, its database locked, a second server on it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use e2e::{Options, Server, binary, free_port, shell, wait_until};
use serde_json::json;
use tempfile::TempDir;

#[test]
fn second_server_on_the_same_data_folder_is_refused() {
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
fn server_reports_a_port_in_use() {
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

/// A small disk for a data folder.
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

    /// Fills the disk completely.
    fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        for size in [1 << 20, 4096, 1] {
            let block = vec![7; size];
            while file.write_all(&block).is_ok() {}
        }
    }

    /// Fills the disk except for this much.
    fn fill_except(&self, mebibytes: u64) {
        self.fill();
        let file = File::options().write(true).open(self.filler()).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length - (mebibytes << 20)).unwrap();
    }

    /// Leaves exactly this much free, and never less in between.
    fn leave_exactly(&self, mebibytes: u64) {
        let facts = rustix::fs::statvfs(self.folder.path()).unwrap();
        let free = facts.f_bavail * facts.f_frsize;
        let mut file = File::create(self.filler()).unwrap();
        let block = vec![7; 1 << 20];
        for _ in 0..(free >> 20).saturating_sub(mebibytes) {
            file.write_all(&block).unwrap();
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
fn full_data_disk_is_reported_and_nothing_is_lost() {
    let disk = SmallDisk::new(256);
    let server = Server::start_with(Options { data: Some(disk.path()), ..Options::default() });
    let before = server.schedule_steps(&[shell("echo before > before.txt")]);
    before.wait_for("complete");
    disk.fill();
    // A little may still fit into allocated blocks; the server must notice the full disk soon.
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
fn job_continues_after_a_full_data_disk_has_space_again() {
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

#[test]
fn result_that_does_not_fit_waits_for_space_or_cancellation() {
    let disk = SmallDisk::new(512);
    let config = "[sandbox]\ndisk_reserve_mib = 1\n".to_owned();
    let server = Server::start_with(Options { config, data: Some(disk.path()), ..Options::default() });
    // Without `sync`, data not yet written back would have to fit as well.
    let make =
        "head -c 60000000 /dev/urandom > large; sync; echo ready; until [ -e go ]; do sleep 0.05; done";
    let (kept, given_up) = (server.schedule_steps(&[shell(make)]), server.schedule_steps(&[shell(make)]));
    let mut followed = [kept.follow(), given_up.follow()];
    for events in &mut followed {
        events.until("the large file", |event| event.is("call_output"));
    }
    disk.fill_except(20);
    wait_until("sandboxes go on", || server.get("/readyz").status == 200);
    for (job, events) in [&kept, &given_up].into_iter().zip(&mut followed) {
        // While the other result is collected there is no room, and this sandbox is frozen.
        job.touch("go");
        events.until("the end of the work", |event| event.is_state("collecting"));
        events.until("the wait for space", |event| event.is("note"));
    }
    assert!(server.get("/readyz").expect(503).text().contains("cannot continue"));
    given_up.cancel();
    given_up.wait_for("cancelled");
    disk.free();
    kept.wait_for("complete");
    assert_eq!(kept.output().read("large").len(), 60_000_000);
    let left = std::fs::read_dir(server.data().join("jobs").join(&given_up.id)).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(left.iter().all(|name| !name.ends_with(".partial") && name != "output.zip"), "{left:?}");
    server.assert_nothing_left();
}

/// Writes files of one megabyte with their checksums until there is a file `go`.
const WRITE: &str = "i=0; until [ -e go ]; do i=$((i+1)); [ $i -gt 60 ] && sleep 0.05 && continue; \
     head -c 1000000 /dev/urandom > f$i; sha256sum f$i >> sums; [ $i = 3 ] && echo ready; sleep 0.01; done; true";
const CHECK: &str = "sync; sha256sum --check --quiet sums && echo intact";

#[test]
fn sandboxes_freeze_before_the_host_disk_is_full_and_lose_nothing() {
    let disk = SmallDisk::new(512);
    let server = Server::start_with(Options { data: Some(disk.path()), ..Options::default() });
    let job = server.schedule_steps(&[shell(WRITE), shell(CHECK)]);
    let mut events = job.follow();
    events.until("the first files", |event| event.is("call_output"));
    disk.leave_exactly(60);
    let stopped = events.until("the stop", |event| event.is("sandbox_paused"));
    assert_eq!(stopped.data()["code"], "host_disk_full");
    assert!(server.get("/readyz").expect(503).text().contains("sandboxes are paused"));
    job.get_file("sums").expect_problem(503, "host_disk_full");
    // A pause that a user requested is independent: free space does not end it.
    job.post("pause", &json!({})).expect(202);
    disk.free();
    events.until("the end of the stop", |event| event.is("sandbox_resumed"));
    job.touch("go");
    let paused = events.until("the pause", |event| event.is_state("paused"));
    assert_eq!(paused.data()["code"], "user");
    job.post("resume", &json!({})).expect(202);
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert_eq!(events.output("step-2.1", "stdout"), "intact\n");
    server.assert_nothing_left();
}

#[test]
fn sandboxes_frozen_by_a_killed_server_are_thawed_by_the_next() {
    let disk = SmallDisk::new(512);
    let server = Server::start_with(Options { data: Some(disk.path()), ..Options::default() });
    let job = server.schedule_steps(&[shell(WRITE), shell(CHECK)]);
    let mut events = job.follow();
    events.until("the first files", |event| event.is("call_output"));
    disk.leave_exactly(60);
    events.until("the stop", |event| event.is("sandbox_paused"));
    server.kill9();
    disk.free();
    server.restart();
    job.touch("go");
    assert_eq!(job.wait_for("complete")["steps"][0]["attempts"], 1);
    let mut events = job.follow();
    // Until here the time does not count as work.
    events.until("the end of the stop", |event| event.is("sandbox_resumed"));
    events.until_end();
    assert_eq!(events.output("step-2.1", "stdout"), "intact\n");
    server.assert_nothing_left();
}

#[test]
fn workspace_with_lost_data_is_not_delivered() {
    let disk = SmallDisk::new(512);
    let server = Server::start_with(Options { data: Some(disk.path()), ..Options::default() });
    // Keeps writing, so that some data is not stored yet. Ends by itself, because a damaged disk may not accept a
    // file.
    let write = "head -c 40000000 /dev/urandom > lost; echo ready; for i in $(seq 1500); do \
         [ $i -gt 150 ] || head -c 1000000 /dev/urandom >> lost; sleep 0.02; done; true";
    let job = server.schedule(&json!({"steps": [shell(write)], "on_loss": "fail"}));
    let mut events = job.follow();
    events.until("the file", |event| event.is("call_output"));
    // Something else on the host uses up the disk, and then the kernel writes back the dirty pages.
    disk.fill();
    events.until("the stop", |event| event.is("sandbox_paused"));
    rustix::fs::sync();
    disk.free();
    events.until("the end of the stop", |event| event.is("sandbox_resumed"));
    let failed = job.wait_for_failure("workspace_damaged");
    assert!(failed["reason"].as_str().unwrap().contains("damaged"), "{failed}");
    assert_eq!(server.get(&format!("/jobs/{}/output.zip", job.id)).status, 404);
    server.assert_nothing_left();
}

/// Another process that holds a lock on the database.
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
fn locked_database_is_reported_and_nothing_is_lost() {
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
fn server_waiting_for_its_database_can_be_stopped() {
    let server = Server::start();
    let print = "until [ -e go ]; do echo line; sleep 0.05; done; echo done > done.txt";
    let job = server.schedule_steps(&[shell(print)]);
    job.follow().until("the first output", |event| event.is("call_output"));
    let lock = Lock::take(&server.data().join("caisson.db"));
    wait_until("the job waits for its database", || server.get("/readyz").text().contains("cannot continue"));
    server.stop();
    lock.release();
    server.restart();
    job.touch("go");
    assert_eq!(job.wait_for("complete")["steps"][0]["attempts"], 1);
    assert_eq!(job.output().text("done.txt"), "done\n");
    server.assert_nothing_left();
}

#[test]
fn old_jobs_are_removed_except_running_ones() {
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

/// Whether a text occurs in a folder: in a file's content, its name, or a link target.
fn is_in_folder(folder: &Path, text: &str) -> bool {
    let prints = |program: &mut Command| !program.output().unwrap().stdout.is_empty();
    prints(Command::new("grep").args(["-ralF", text]).arg(folder))
        || prints(Command::new("find").arg(folder).args(["-name", text, "-o", "-lname", text]))
}

#[test]
fn deleted_job_leaves_only_its_signed_statement_on_disk() {
    let server = Server::start();
    let text = "only-this-job-has-this-text";
    let set = format!("import os; os.setxattr('a', 'user.x', b'{text}')");
    let script = format!(
        "echo {text} | tee a; /usr/bin/python3 -c \"{set}\"; ln -s {text} link; touch {text}; sync ."
    );
    // A small disk can be searched quickly.
    let job = server.schedule(&json!({"steps": [shell(&script)], "limits": {"disk_mib": 16}}));
    job.wait_for("complete");
    assert!(is_in_folder(&server.data(), text));
    assert!(matches!(job.delete().status, 200 | 204));
    wait_until("nothing is left of the job", || !is_in_folder(&server.data(), text));
    // If the server is killed before it has removed the folder, the next one removes it.
    server.stop();
    let folder = server.data().join("jobs").join(&job.id);
    assert!(!folder.exists());
    for left in [&folder, &server.data().join("deletions")] {
        std::fs::create_dir_all(left).unwrap();
        std::fs::write(left.join(&job.id), text).unwrap();
    }
    server.restart();
    wait_until("its folder is removed", || !is_in_folder(&server.data(), text));
}
