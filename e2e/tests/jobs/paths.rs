//! Paths that lead out of the workspace: refused by every tool, by the API and by the collector, even while a process
//! keeps swapping directories and links.

use e2e::{Job, RawConnection, Server, shell};
use serde_json::json;

/// A job that runs a command first and then waits for a file `stop`.
fn waiting_job<'a>(server: &'a Server, first: &str) -> Job<'a> {
    let job = server
        .schedule_steps(&[shell(&format!("{first}\necho ready; until [ -e stop ]; do sleep 0.05; done"))]);
    job.follow().until("the first output", |event| event.is("call_output"));
    job
}

#[test]
fn path_out_of_the_workspace_is_refused_in_every_file_tool() {
    let server = Server::start();
    for path in
        ["../x", "/etc/passwd", "a/../../x", "/workspace/../etc/passwd", "/app/../x", "..", "a\u{0}b", ""]
    {
        for step in [
            json!({"tool": "write_file", "path": path, "content": "x"}),
            json!({"tool": "read_file", "path": path}),
            json!({"tool": "edit_file", "path": path, "old": "a", "new": "b"}),
            json!({"tool": "delete_file", "path": path, "recursive": true}),
            json!({"tool": "move_file", "from": path, "to": "y"}),
            json!({"tool": "move_file", "from": "y", "to": path}),
            json!({"tool": "list_files", "path": format!("{path}/..")}),
        ] {
            let answer = server.post("/schedule", &json!({"steps": [step.clone()]}));
            assert_eq!((answer.status, &answer.json()["code"]), (422, &json!("invalid_field")), "{step}");
        }
    }
}

#[test]
fn link_out_of_the_workspace_is_refused_in_every_file_tool() {
    let server = Server::start();
    let links = "ln -s /etc etc; ln -s / root; ln -s ../../etc up; ln -s /etc/passwd passwd; ln -s /proc/self/root proc; touch mine";
    for step in [
        json!({"tool": "read_file", "path": "etc/passwd"}),
        json!({"tool": "read_file", "path": "passwd"}),
        json!({"tool": "read_file", "path": "up/passwd"}),
        json!({"tool": "read_file", "path": "proc/etc/passwd"}),
        json!({"tool": "write_file", "path": "root/tmp/x", "content": "x"}),
        json!({"tool": "edit_file", "path": "etc/passwd", "old": "root", "new": "toor"}),
        json!({"tool": "delete_file", "path": "root/workspace/mine"}),
        json!({"tool": "move_file", "from": "mine", "to": "root/tmp/y"}),
        json!({"tool": "move_file", "from": "etc/passwd", "to": "stolen"}),
        json!({"tool": "list_files", "path": "etc"}),
    ] {
        let job = server.schedule_steps(&[shell(links), step.clone()]);
        let mut events = job.follow();
        events.until_end();
        let status = job.status();
        assert_eq!(status["steps"][1]["status"], "failed", "{step} was carried out");
        assert_eq!(status["steps"][1]["code"], "path_outside_workspace", "{step}: {status}");
    }
}

#[test]
fn path_out_of_the_workspace_is_refused_by_the_files_api() {
    let server = Server::start();
    let job = waiting_job(&server, "ln -s /etc etc; ln -s /etc/passwd passwd");
    // A raw request, because a normal client resolves `..` itself.
    for path in
        ["../x", "..%2Fx", "%2e%2e/x", "%2Fetc%2Fpasswd", "a/..%2f..%2fx", "%2E%2E%2F%2E%2E%2Fetc%2Fpasswd"]
    {
        for method in ["GET", "PUT", "DELETE"] {
            let request = format!(
                "{method} /v1/jobs/{}/files/{path} HTTP/1.1\r\nHost: localhost:{}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                job.id, server.port
            );
            let answer = RawConnection::exchange(server.port, &request);
            assert!(answer.starts_with("HTTP/1.1 4"), "{method} {path}: {answer}");
        }
    }
    for path in ["etc/passwd", "passwd"] {
        job.get_file(path).expect_problem(403, "path_outside_workspace");
    }
    job.put_file("etc/x", "x").expect_problem(403, "path_outside_workspace");
    job.delete_file("etc/passwd").expect_problem(403, "path_outside_workspace");
    let move_out = job.post("files/passwd", &json!({"move_to": "../stolen"}));
    assert!(matches!(move_out.status, 403 | 422), "{}", move_out.text());
    job.put_file("stop", "");
    job.wait_for("complete");
}

#[test]
fn a_nul_in_a_path_is_refused() {
    let server = Server::start();
    let job = waiting_job(&server, "true");
    job.get_file("a%00b").expect_problem(400, "invalid_path");
    job.put_file("a%00b", "x").expect_problem(400, "invalid_path");
    job.put_file("stop", "");
    job.wait_for("complete");
}

/// Swaps a directory and a link to `/etc` in a tight loop until a file `stop` exists.
const SWAP: &str = "mkdir -p real; echo mine > real/passwd; ln -sfn /etc evil; cp -r real dir
cat > swap.py <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
EXCHANGE = 2
while not os.path.exists('stop'):
    for _ in range(1000):
        libc.renameat2(-100, b'dir', -100, b'evil', EXCHANGE)
END
python3 swap.py &
";

#[test]
fn swapped_links_never_lead_the_files_api_out_of_the_workspace() {
    let server = Server::start();
    let job = waiting_job(&server, SWAP);
    let host = std::fs::read_to_string("/etc/passwd").unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..400 {
        let answer = job.get_file("dir/passwd");
        let text = answer.text();
        assert!(text != host && !text.contains("root:"), "a file outside the workspace was read");
        seen.insert(answer.status);
        if answer.status == 200 {
            assert_eq!(text, "mine\n");
        }
        job.put_file(&format!("dir/new{}", round % 10), "x");
        job.delete_file("dir/shadow");
    }
    assert!(seen.contains(&200), "the swap never showed the inner file: {seen:?}");
    let outside = job.exec("ls /etc/new* 2>/dev/null | wc -l").expect(200).json();
    assert_eq!(outside["stdout"], "0\n", "a file was written outside the workspace");
    job.put_file("stop", "");
    job.wait_for("complete");
}

#[test]
fn special_files_and_overlong_names_are_refused_by_the_files_api() {
    let server = Server::start();
    let make = "import os, socket\nos.mkfifo('pipe')\nsocket.socket(socket.AF_UNIX).bind('socket')\n\
                os.symlink('two', 'one')\nos.symlink('one', 'two')";
    let job = waiting_job(&server, &format!("python3 -c \"{make}\""));
    let long = "n".repeat(256);
    for (path, status, code) in [
        ("pipe", 409, "not_a_file"),
        ("socket", 409, "not_a_file"),
        ("one", 409, "link_loop"),
        ("one/below", 409, "link_loop"),
        (&long, 400, "invalid_path"),
    ] {
        job.get_file(path).expect_problem(status, code);
    }
    job.put_file(&long, "x").expect_problem(400, "invalid_path");
    let draft = server.schedule(&json!({"steps": [shell("true")], "start": false}));
    for path in [long.clone(), format!("{long}/file")] {
        draft.put_file(&path, "x").expect_problem(400, "invalid_path");
    }
    job.put_file("stop", "");
    job.wait_for("complete");
}

#[test]
fn swapped_links_never_lead_the_collector_out_of_the_workspace() {
    let server = Server::start();
    let swap = SWAP.replace("python3 swap.py &", "setsid python3 swap.py >/dev/null 2>&1 &");
    let job =
        server.schedule_steps(&[shell(&format!("{swap}\nfor n in $(seq 2000); do echo $n > f$n; done"))]);
    let status = job.wait();
    assert!(["complete", "failed"].contains(&status["status"].as_str().unwrap()));
    let mut zip = job.output();
    for name in zip.names() {
        let text = String::from_utf8_lossy(&zip.read(&name)).into_owned();
        assert!(!text.contains("root:"), "{name} comes from outside the workspace");
    }
    server.assert_nothing_left();
}

#[test]
fn workspace_replaced_by_a_link_is_not_followed() {
    let server = Server::start();
    let replace = "cd /; mv /workspace /old 2>&1; rm -rf /workspace 2>&1; ln -s /etc /workspace 2>&1; ls -ld /workspace; true";
    let job = server.schedule_steps(&[
        shell("echo mine > mine.txt"),
        shell(replace),
        json!({"tool": "read_file", "path": "passwd", "continue_on_error": true}),
        json!({"tool": "write_file", "path": "after.txt", "content": "x", "continue_on_error": true}),
    ]);
    let mut events = job.follow();
    events.until_end();
    let status = job.status();
    assert_eq!(status["steps"][2]["status"], "failed", "{}", events.summary());
    let names = job.output().names();
    assert!(!names.iter().any(|name| name.contains("passwd")), "{names:?}");
    server.assert_nothing_left();
}

#[test]
fn unusual_file_names_are_collected_or_listed_as_skipped() {
    let server = Server::start();
    let job = server.schedule_steps(&[json!({"tool": "python", "code": "import os, socket\nos.makedirs('-rf')\nfor name in [b'new\\nline', b'back\\\\slash', b'\\xff\\xfe', b'quote\"', b' ', b'-rf/x', b'C:evil']:\n    open(name, 'w').write('x')\nos.mkfifo('pipe')\nsocket.socket(socket.AF_UNIX).bind('socket')\nos.symlink('/etc/passwd', 'link')\nos.symlink('loop', 'loop')"})]);
    job.wait_for("complete");
    let zip = job.output();
    assert!(zip.has("-rf/x") && zip.has("quote\""), "{:?}", zip.names());
    let manifest = job.manifest();
    let left_out = manifest["left_out"].as_array().unwrap();
    let link = json!({"path": "link", "reason": "absolute_link", "target": "/etc/passwd"});
    assert!(left_out.contains(&link) && !zip.has("link"), "a link that leads out came home: {manifest}");
    let pipe = json!({"path": "pipe", "reason": "not_packed"});
    assert!(left_out.contains(&pipe), "{manifest}");
    assert_eq!(
        manifest["links"],
        json!([{"path": "loop", "target": "loop"}]),
        "one that leads nowhere stays"
    );
    assert!(!zip.names().iter().any(|name| name == "pipe" || name == "socket"), "{:?}", zip.names());
    server.assert_nothing_left();
}
