//! Audit: the list of files that a job touched, and the verification of its event log.

use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::{Options, Server, binary, shell, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

/// The lines with this event and path.
fn of<'a>(list: &'a [Value], event: &str, path: &str) -> Vec<&'a Value> {
    list.iter().filter(|line| line["event"] == event && line["path"] == path).collect()
}

#[track_caller]
fn assert_touched(list: &[Value]) {
    assert_eq!((&list[0]["event"], &list[0]["method"]), (&json!("begin"), &json!("fanotify")), "{list:?}");
    for (event, path) in [
        ("created", "/workspace/a.txt"),
        ("written", "/workspace/a.txt"),
        ("renamed", "/workspace/b.txt"),
        ("opened", "/workspace/b.txt"),
        ("created", "/workspace/d/e"),
        ("deleted", "/workspace/d/gone"),
        ("written", "/tmp/t"),
        ("created", "/home/agent/h"),
    ] {
        assert!(!of(list, event, path).is_empty(), "no {event} {path} in {list:#?}");
    }
    assert_eq!(of(list, "renamed", "/workspace/b.txt")[0]["from"], "/workspace/a.txt");
    let written = of(list, "written", "/workspace/a.txt")[0];
    assert_eq!((&written["call"], &written["process"]), (&json!("step-1.1"), &json!("bash")), "{written}");
    assert!(written["pid"].as_u64().is_some_and(|pid| pid < 1000), "the number inside: {written}");
    assert!(
        list.iter().all(|line| !line["path"].as_str().unwrap_or_default().starts_with("/usr")),
        "{list:#?}"
    );
}

/// The list file of the only sandbox, as it is being written.
fn live_file_audit(folder: &Path) -> String {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.ends_with("files.jsonl") {
            return fs::read_to_string(path).unwrap_or_default();
        }
        if path.is_dir() && !path.is_symlink() {
            let found = live_file_audit(&path);
            if !found.is_empty() {
                return found;
            }
        }
    }
    String::new()
}

/// Waits for the file `on` before the rename: a reader that resolves names after the fact must first see the old
/// name.
const TOUCH: &str = "echo hi > a.txt; until [ -e /workspace/on ]; do sleep 0.05; done; mkdir -p d/e; echo x > d/gone; mv a.txt b.txt; rm d/gone; read line < b.txt; \
    echo t > /tmp/t; echo h > ~/h; cat /usr/bin/env > /dev/null";

#[test]
fn file_audit_lists_touched_files_with_process_and_call() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell(TOUCH)]);
    wait_until("the first file is listed", || {
        let list = job.get("audit/files");
        list.status == 200 && !of(&lines(&list.text()), "written", "/workspace/a.txt").is_empty()
    });
    job.touch("on");
    job.wait_for("complete");
    let list = job.get("audit/files").text();
    assert_touched(&lines(&list));
    assert_eq!(job.download("audit/files.jsonl").text(), list);
    let kept = server.data().join("jobs").join(&job.id).join("audit/files.jsonl");
    assert_eq!(fs::read_to_string(kept).unwrap(), list);
    server.assert_nothing_left();
}

#[test]
fn file_audit_continues_without_a_server() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell(&format!(
        "touch begun; while [ ! -e /workspace/go ]; do sleep 0.1; done; {TOUCH}"
    ))]);
    wait_until("the step has begun", || job.get_file("begun").status == 200);
    // A background process creates the file that the job waits for while the server is down.
    job.exec("setsid sh -c 'sleep 2; touch /workspace/go; sleep 3; touch /workspace/on' > /dev/null 2>&1 &")
        .expect(200);
    server.kill9();
    wait_until("it has gone on without a server", || {
        live_file_audit(&server.data()).contains("\"/home/agent/h\"")
    });
    server.restart();
    job.wait_for("complete");
    let list = lines(&job.get("audit/files").text());
    assert_touched(&list);
    assert!(!of(&list, "created", "/workspace/begun").is_empty(), "{list:#?}");
    assert_eq!(list.iter().filter(|line| line["event"] == "begin").count(), 1, "one list: {list:#?}");
}

#[test]
fn file_audit_of_a_bare_sandbox_survives_it_and_has_open_files() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    // `true` at the end: the shell would exec the last command, and the kernel merges one process's events on a file.
    let before = "echo a > 'made (deleted)'; echo s > /dev/shm/shared; mkdir ~/mine; echo o > ~/mine/o; cat ~/mine/o; true";
    assert_eq!(sandbox.exec(before)["exit_code"], 0);
    // Fetched while the sandbox runs: the list includes the newest line.
    for number in 0..20 {
        assert_eq!(sandbox.exec(&format!("echo x > now-{number}"))["exit_code"], 0);
        let list = lines(&sandbox.get("audit/files").expect(200).text());
        assert!(!of(&list, "written", &format!("/workspace/now-{number}")).is_empty(), "{list:#?}");
    }
    let open = "exec 3> open-to-the-end; echo begun >&3; sleep 600 > /dev/null 2>&1 &";
    assert_eq!(sandbox.exec(open)["exit_code"], 0);
    sandbox.end().expect(204);
    let answer = || server.get(&format!("/v1/sandboxes/{}/audit/files", sandbox.id));
    wait_until("the list is kept", || answer().status == 200 && answer().text().contains("open-to-the-end"));
    let list = lines(&answer().text());
    assert_eq!(list[0]["method"], "fanotify", "{list:#?}");
    for (event, path) in [
        ("created", "/workspace/made (deleted)"),
        ("written", "/workspace/made (deleted)"),
        ("written", "/dev/shm/shared"),
        ("opened", "/home/agent/mine/o"),
        ("written", "/workspace/open-to-the-end"),
    ] {
        assert!(!of(&list, event, path).is_empty(), "no {event} {path} in {list:#?}");
    }
    server.assert_nothing_left();
}

#[test]
fn kernel_queue_overflow_is_a_gap_in_the_file_audit() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    sandbox.follow().until("its sandbox", |event| event.is("sandbox_ready"));
    // Stops the launcher, which writes the list, while more happens than the kernel's queue holds.
    let owner = server.newest_sandbox();
    owner.signal_launcher(Signal::STOP);
    let many =
        "import os\nfor n in range(40000): os.close(os.open('f', os.O_CREAT | os.O_WRONLY)); os.unlink('f')";
    let ran =
        sandbox.post("exec", &json!({"argv": ["python3", "-c", many], "timeout_s": 300})).expect(200).json();
    assert_eq!(ran["exit_code"], 0, "{ran}");
    owner.signal_launcher(Signal::CONT);
    wait_until("the gap is told", || sandbox.get("audit/files").expect(200).text().contains("\"gap\""));
    let list = lines(&sandbox.get("audit/files").expect(200).text());
    let gap = list.iter().find(|line| line["event"] == "gap");
    let gap = gap.unwrap_or_else(|| panic!("no gap among {} lines", list.len()));
    assert!(gap["reason"].as_str().unwrap().contains("more happened at once"), "{gap}");
    sandbox.end().expect(204);
}

#[test]
fn without_live_file_audit_the_difference_is_reported() {
    let config = "[namespace]\nlist_files = false\n".into();
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule_steps(&[shell("mkdir d; echo x > d/made; echo y > gone; rm gone")]);
    job.wait_for("complete");
    let list = lines(&job.get("audit/files").text());
    assert_eq!(list[0]["method"], "difference");
    let told: Vec<_> = list[1..]
        .iter()
        .map(|line| (line["event"].as_str().unwrap(), line["path"].as_str().unwrap()))
        .collect();
    assert_eq!(told, [("created", "/workspace/d"), ("created", "/workspace/d/made")]);
}

pub(crate) fn audit(server: &Server, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(binary())
        .arg("audit")
        .args(arguments)
        .arg("--data")
        .arg(server.data())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn audit_verifies_offline_and_detects_a_removed_job_by_its_head() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("echo hello")]);
    job.wait_for("complete");
    let (sound, said) = audit(&server, &["verify"]);
    assert!(sound && said.contains("1 of 1 jobs are sound"), "{said}");
    let id = job.id.clone();
    let (exported, head) = audit(&server, &["export-head", &id[id.len() - 8..]]);
    assert!(exported, "{head}");
    let heads = server.get(&format!("/v1/jobs/{id}/audit/heads")).json();
    assert_eq!(serde_json::from_str::<Value>(&head).unwrap(), heads[heads.as_array().unwrap().len() - 1]);
    let report = server.get(&format!("/v1/jobs/{id}/audit")).json();
    assert_eq!((&report["faults"], &report["events"]), (&json!([]), &report["signed_until"]), "{report}");
    let file = server.data().join("kept.jsonl");
    fs::write(&file, &head).unwrap();
    let (_, key) = audit(&server, &["key"]);
    let (_, told) = audit(&server, &["key", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap(), json!({ "key": key.trim() }));
    let file = file.to_str().unwrap();
    let (sound, said) = audit(&server, &["verify", &id, "--head", file, "--key", key.trim()]);
    assert!(sound && said.contains("1 kept elsewhere"), "{said}");
    let (sound, said) = audit(&server, &["verify", "--head", file, "--key", &"0".repeat(64)]);
    assert!(!sound && said.contains("an untrusted key"), "{said}");
    // Keys can be given without a head, and more than one.
    let keys = ["verify", "--key", &"0".repeat(64), "--key", key.trim()];
    let (sound, said) = audit(&server, &keys);
    assert!(sound && said.contains("1 of 1 jobs are sound"), "{said}");
    let (sound, said) = audit(&server, &keys[..3]);
    assert!(!sound && said.contains("by a key that does not count"), "{said}");
    let (sound, said) = audit(&server, &["verify", "--key", "xyz"]);
    assert!(!sound && said.contains("64 hexadecimal digits"), "{said}");
    assert!(matches!(job.delete().status, 200 | 204));
    // The server has deleted the job and signed a statement about it.
    let (sound, said) = audit(&server, &["verify", "--head", file]);
    assert!(sound && said.contains("deleted by anybody") && said.contains("1 jobs were deleted"), "{said}");
    let (exported, statement) = audit(&server, &["export-head", &id]);
    let statement: Value =
        serde_json::from_str(&statement).unwrap_or_else(|error| panic!("{error}: {statement}"));
    assert!(
        exported && statement["deleted_job"] == id.as_str() && statement["by"] == "anybody",
        "{statement}"
    );
    let (_, all) = audit(&server, &["export-head", "--deleted"]);
    assert_eq!(serde_json::from_str::<Value>(&all).unwrap(), statement);
    // Without the statement, a deletion by the server cannot be told from a removal by hand.
    server.stop();
    let wiped = delete_statements(&server.data().join("caisson.db"));
    assert!(wiped, "the statement was there");
    let (sound, said) = audit(&server, &["verify", "--head", file]);
    assert!(!sound && said.contains("the job was removed by hand"), "{said}");
    server.restart();
}

/// Removes every statement about a deleted job, as an attacker with root would.
fn delete_statements(database: &Path) -> bool {
    change(database, "DELETE FROM tombstones")
}

/// Changes the database behind the server's back; returns whether a row was affected.
fn change(database: &Path, sql: &str) -> bool {
    let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); \
        n = c.execute(sys.argv[2]).rowcount; c.commit(); sys.exit(0 if n > 0 else 1)";
    Command::new("python3").args(["-c", script]).arg(database).arg(sql).status().unwrap().success()
}

#[test]
fn missing_signed_heads_are_detected_even_after_a_restart() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("echo hello")]);
    job.wait_for("complete");
    // The signed head is stored together with the end of the job.
    server.kill9();
    let (sound, said) = audit(&server, &["verify"]);
    assert!(sound && said.contains("1 of 1 jobs are sound"), "{said}");
    assert!(said.contains("\nchecked: removal of signed heads between others\n"), "{said}");
    assert!(said.contains("\nnot checked: removal of the newest signed heads"), "{said}");
    let (_, head) = audit(&server, &["export-head", &job.id]);
    let file = server.data().join("kept.jsonl");
    fs::write(&file, &head).unwrap();
    let (sound, said) = audit(&server, &["verify", "--head", file.to_str().unwrap()]);
    assert!(sound && said.contains("\nchecked: removal of the newest signed heads"), "{said}");
    let database = server.data().join("caisson.db");
    assert!(change(&database, "DELETE FROM heads"));
    assert!(change(&database, "UPDATE jobs SET state = 'failed'"));
    let (_, key) = audit(&server, &["key"]);
    let found = || {
        let (sound, said) = audit(&server, &["verify", "--key", key.trim()]);
        assert!(!sound && said.contains("no valid signed head covers its last event"), "{said}");
        assert!(said.contains("jobs.state was changed"), "{said}");
    };
    found();
    server.restart();
    found();
}

#[test]
fn modified_zip_or_result_file_is_detected() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("echo hello > a.txt")]);
    job.wait_for("complete");
    let sandbox = server.create_sandbox(&json!({}));
    assert_eq!(sandbox.exec("echo x > b.txt")["exit_code"], 0);
    sandbox.end().expect(204);
    let (sound, said) = audit(&server, &["verify"]);
    assert!(sound && said.contains("output.zip as stored"), "{said}");
    assert_eq!(said.matches("audit/files.jsonl as stored").count(), 2, "of the sandbox too: {said}");
    let folder = server.data().join("jobs").join(&job.id);
    for name in ["output.zip", "audit/files.jsonl", "manifest.json", "memory.json"] {
        let path = folder.join(name);
        let before = fs::read(&path).unwrap();
        let mut changed = before.clone();
        changed[0] ^= 1;
        fs::write(&path, changed).unwrap();
        let (sound, said) = audit(&server, &["verify", &job.id]);
        assert!(!sound && said.contains(&format!("{name} was changed")), "{said}");
        fs::remove_file(&path).unwrap();
        let (sound, said) = audit(&server, &["verify", &job.id]);
        assert!(sound && said.contains(&format!("{name} is missing")), "{said}");
        fs::write(&path, before).unwrap();
    }
    assert!(audit(&server, &["verify"]).0);
}

/// The peak resident memory of a process, in KiB.
fn peak_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn file_audit_memory_of_the_launcher_is_bounded() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    sandbox.follow().until("its sandbox", |event| event.is("sandbox_ready"));
    let owner = server.newest_sandbox();
    let before = peak_kib(owner.launcher);
    // Opens files with long paths, keeps many of them open, and has a large environment.
    let many = "import os\nplace = '/workspace' + ('/' + 'n' * 250) * 14\nos.makedirs(place)\nkept = []\n\
        for n in range(6000):\n    f = open(f'{place}/{n:0200}', 'w')\n    kept = (kept + [f])[-200:]";
    let environment = json!({"A": "x".repeat(100_000), "B": "x".repeat(100_000), "C": "x".repeat(100_000)});
    let body = json!({"argv": ["python3", "-c", many], "timeout_s": 600, "environment": environment});
    let ran = sandbox.post("exec", &body).expect(200).json();
    assert_eq!(ran["exit_code"], 0, "{ran}");
    let told = sandbox.get("audit/files").expect(200).text();
    assert!(told.matches("\"created\"").count() > 6000, "{} bytes were told", told.len());
    let grown = peak_kib(owner.launcher) - before;
    assert!(grown < 12 * 1024, "the owner of the sandbox has grown by {grown} KiB");
    sandbox.end().expect(204);
}
