//! The access log: who did what, in a file that survives a crash of the server.

use e2e::{Options, RawConnection, wait_until};
use serde_json::{Value, json};

use crate::keyed_server::{Keyed, start};

/// Name, action and status of each access log entry, newest first.
fn told(keyed: &Keyed) -> Vec<(String, String, u64)> {
    let entries = keyed.get(&keyed.admin, "/v1/access-log?limit=1000").expect(200).json()["entries"].clone();
    let word = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let tell = |entry: &Value| {
        let what = format!("{} {}", word(entry, "method"), word(entry, "path"));
        (word(entry, "who"), what, entry["status"].as_u64().unwrap())
    };
    entries.as_array().unwrap().iter().map(tell).collect()
}

#[test]
fn access_log_survives_a_killed_server() {
    // The access log does not depend on the log level.
    let keyed = start(Options { config: "log = \"error\"\n".into(), ..Options::default() });
    let ada = keyed.key("ada", "submitter", &json!({}));
    let login = keyed.server.post("/v1/session", &json!({"key": ada})).expect(200);
    assert!(login.header("set-cookie").contains("caisson_session="));
    let job = keyed.schedule(&ada, "echo text > a.txt");
    keyed.wait_for(&job, "complete");
    keyed.get(&ada, &format!("/jobs/{job}/output.zip")).expect(200);
    keyed.get(&ada, &format!("/v1/jobs/{job}/files/a.txt")).expect(200);
    keyed.get(&ada, &format!("/v1/jobs/{job}/events")).expect(200);
    keyed.get(&ada, &format!("/v1/jobs/{job}")).expect(200);
    let expected = [
        ("ada", format!("GET /v1/jobs/{job}/events"), 200),
        ("ada", format!("GET /v1/jobs/{job}/files/a.txt"), 200),
        ("ada", format!("GET /jobs/{job}/output.zip"), 200),
        ("ada", "POST /schedule".into(), 202),
        ("ada", "POST /v1/session".into(), 200),
        ("root", "POST /v1/keys".into(), 201),
        ("anybody", "POST /v1/keys".into(), 201),
    ]
    .map(|(who, what, status)| (who.to_owned(), what, status));
    assert_eq!(told(&keyed), expected);
    let file = keyed.server.data().join("access.jsonl");
    let lines = || std::fs::read_to_string(&file).unwrap_or_default().lines().count();
    wait_until("all is written", || lines() == expected.len());
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&ada), "a key is in the file");
    keyed.server.kill9();
    keyed.server.restart();
    assert_eq!(told(&keyed), expected, "the next server knows it");
    keyed.get(&ada, "/v1/keys").expect_problem(403, "role_too_weak");
    assert_eq!(told(&keyed)[0], ("ada".to_owned(), "GET /v1/keys".to_owned(), 403));
}

#[test]
fn requests_to_a_job_origin_are_in_the_access_log() {
    let keyed = start(Options::default());
    let ada = keyed.key("ada", "submitter", &json!({"requests_per_second": 5}));
    let job = keyed.schedule(&ada, "true");
    let origin = format!("{job}-8123.localhost:{}", keyed.server.port);
    let ask = |method: &str, key: &str| {
        let request = format!(
            "{method} /x HTTP/1.1\r\nHost: {origin}\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\r\n"
        );
        let answer = RawConnection::exchange(keyed.server.port, &request);
        answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()).unwrap_or_default()
    };
    let path = format!("//{job}-8123/x");
    assert_eq!(ask("GET", &format!("caisson_{}", "0".repeat(64))), 401);
    assert!(told(&keyed).contains(&("nobody".into(), format!("GET {path}"), 401)), "{:?}", told(&keyed));
    // Nothing listens on that port; the request is logged anyway.
    let status = u64::from(ask("POST", &ada));
    assert!(told(&keyed).contains(&("ada".into(), format!("POST {path}"), status)), "{:?}", told(&keyed));
    // At the same time: one after another, a busy machine might be slower than the key may be.
    let refused = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..40).map(|_| scope.spawn(|| ask("GET", &ada))).collect();
        let statuses = callers.into_iter().map(|caller| caller.join().unwrap());
        statuses.filter(|status| *status == 429).count()
    });
    assert!(refused > 0, "a key is as fast there as it is elsewhere");
    assert!(told(&keyed).iter().any(|entry| entry.2 == 429), "{:?}", told(&keyed));
}

/// How many calls over the API have started in a job, and how many have ended.
fn calls(keyed: &Keyed, job: &str) -> (usize, usize) {
    let page = keyed.get(&keyed.admin, &format!("/v1/jobs/{job}/events?format=json&limit=1000")).expect(200);
    let count = |kind: &str| {
        let events = page.json()["events"].clone();
        let is_it = |event: &&Value| {
            event["kind"] == kind && event["call"]["id"].as_str().is_some_and(|id| id.starts_with("api-"))
        };
        events.as_array().unwrap().iter().filter(is_it).count()
    };
    (count("call_started"), count("call_ended"))
}

#[test]
fn requests_of_disconnected_clients_complete_and_are_logged() {
    let keyed = start(Options::default());
    let job = keyed.schedule(&keyed.admin, "sleep 3600");
    let exec = format!("/v1/jobs/{job}/exec");
    let run = |command: &str| keyed.post(&keyed.admin, &exec, &json!({"command": command}));
    wait_until("the job has a sandbox", || run("true").status == 200);
    let (begun, ended) = calls(&keyed, &job);
    assert_eq!(begun, ended);
    let body = json!({"command": "until test -e go; do sleep 0.1; done; echo late"}).to_string();
    let mut connection = RawConnection::open(keyed.server.port);
    let request = format!(
        "POST {exec} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        keyed.admin,
        body.len()
    );
    assert!(connection.write(request.as_bytes()));
    wait_until("it has begun", || calls(&keyed, &job).0 == begun + 1);
    drop(connection);
    let logged_before = told(&keyed).iter().filter(|(_, what, _)| *what == format!("POST {exec}")).count();
    run("touch go").expect(200);
    wait_until("its end is in the log of the job", || calls(&keyed, &job) == (begun + 2, ended + 2));
    wait_until("both are in the log of who did what", || {
        told(&keyed).iter().filter(|(_, what, _)| *what == format!("POST {exec}")).count()
            == logged_before + 2
    });
}

/// Accepts a request and never answers it.
const SILENT: &str = r#"
import socket, time
listener = socket.create_server(("127.0.0.1", 8124))
while True:
    connection, _ = listener.accept()
    connection.recv(65536)
    open("asked", "w").close()
    time.sleep(3600)
"#;

#[test]
fn aborted_requests_to_a_job_port_are_logged_with_status_499() {
    let keyed = start(Options::default());
    let ada = keyed.key("ada", "submitter", &json!({}));
    let steps = json!([
        {"tool": "write_file", "path": "silent.py", "content": SILENT},
        {"tool": "shell", "command": "python3 silent.py"}
    ]);
    let job = keyed.post(&ada, "/schedule", &json!({"steps": steps})).expect(202).json()["job_id"].clone();
    let job = job.as_str().unwrap();
    wait_until("the job listens", || {
        let answer = keyed.get(&ada, &format!("/v1/jobs/{job}/ports"));
        answer.status == 200 && answer.text().contains("8124")
    });
    let mut connection = RawConnection::open(keyed.server.port);
    let request = format!(
        "POST /do HTTP/1.1\r\nHost: {job}-8124.localhost:{}\r\nAuthorization: Bearer {ada}\r\nContent-Length: 0\r\n\r\n",
        keyed.server.port
    );
    assert!(connection.write(request.as_bytes()));
    wait_until("the job has the request", || {
        keyed.get(&ada, &format!("/v1/jobs/{job}/files/asked")).status == 200
    });
    let line = ("ada".to_owned(), format!("POST //{job}-8124/do"), 499);
    assert!(!told(&keyed).contains(&line), "nobody has hung up yet");
    drop(connection);
    wait_until("it is told", || told(&keyed).contains(&line));
}
