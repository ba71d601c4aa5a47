//! Floods of wrong keys, headers and WebSockets. The server stays up, rejects them cheaply, and logs them in few
//! lines.

use e2e::{Options, RawConnection, Said, Socket, wait_until};
use reqwest::Method;
use reqwest::blocking::RequestBuilder;
use serde_json::{Value, json};

use crate::keyed_server::{Keyed, start};

/// The CPU time that a process has used.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The process name, in parentheses, may contain spaces.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

#[test]
fn wrong_key_flood_is_refused_and_logged_in_few_entries() {
    let keyed = start(Options::default());
    let before = keyed.server.log().lines().count();
    let worked = cpu_seconds(keyed.server.pid());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let keyed = &keyed;
            scope.spawn(move || {
                for number in (0..1000).filter(|number| number % 8 == thread) {
                    let wrong = format!("caisson_{number:064}");
                    let request = keyed.request(&wrong, Method::GET, "/v1/jobs");
                    keyed.server.send(request).expect_problem(401, "key_unknown");
                }
            });
        }
    });
    // An unoptimised build; `bench` measures the cost of a single key check.
    let worked = cpu_seconds(keyed.server.pid()) - worked;
    assert!(worked < 15.0, "a thousand wrong keys took {worked} s of the processor");
    let log = keyed.server.log();
    let told: Vec<&str> =
        log.lines().skip(before).filter(|line| line.contains("without a valid API key")).collect();
    assert!(!told.is_empty() && told.len() < 20, "{} lines: {told:?}", told.len());
    assert!(told[0].contains("from=\"127.0.0.1\""), "{}", told[0]);
    assert!(!log.contains(&format!("caisson_{:064}", 7)), "a key that was tried is in the log");
    keyed.get(&keyed.admin, "/v1/jobs").expect(200);
    assert!(is_logged(&keyed, "POST /v1/keys"), "the flood pushed nothing out");
    // No request follows the flood, and the log must still report the final count.
    wait_until("all wrong keys are told of", || count_with_status(&entries(&keyed), 401) == 1000);
}

/// The entries of the access log.
fn entries(keyed: &Keyed) -> Vec<Value> {
    let answer = keyed.get(&keyed.admin, "/v1/access-log?limit=1000").expect(200).json();
    answer["entries"].as_array().unwrap().clone()
}

fn is_logged(keyed: &Keyed, what: &str) -> bool {
    let name =
        |entry: &Value| format!("{} {}", entry["method"].as_str().unwrap(), entry["path"].as_str().unwrap());
    entries(keyed).iter().any(|entry| name(entry) == what)
}

/// How many unauthenticated requests with this status the log entries represent.
fn count_with_status(entries: &[Value], status: u64) -> u64 {
    let counted = entries.iter().filter(|entry| entry["who"] == "nobody" && entry["status"] == status);
    counted.map(|entry| entry["count"].as_u64().unwrap()).sum()
}

#[test]
fn unauthenticated_requests_do_not_evict_access_log_entries() {
    let keyed = start(Options::default());
    let before = keyed.server.log().lines().count();
    let origin = format!("{}-80.localhost:{}", "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f", keyed.server.port);
    let (server, json) = (&keyed.server, "application/json");
    let attempts: [&(dyn Fn() -> RequestBuilder + Sync); 4] = [
        &|| server.request(Method::DELETE, "/v1/session"),
        &|| server.request(Method::POST, "/v1/session").header("content-type", json).body("{"),
        &|| server.request(Method::POST, "/_caisson/enter").header("host", &origin).body("x"),
        // A page of another site; the origin check rejects it before the key check.
        &|| server.request(Method::POST, "/v1/jobs").header("origin", "http://evil.example").body("x"),
    ];
    std::thread::scope(|scope| {
        for attempt in attempts {
            for _ in 0..2 {
                scope.spawn(move || (0..1000).for_each(|_| drop(server.send(attempt()))));
            }
        }
    });
    assert!(is_logged(&keyed, "POST /v1/keys"), "{:?}", entries(&keyed));
    wait_until("all of them are counted", || {
        let entries = entries(&keyed);
        let counted = entries.iter().filter(|entry| entry["who"] == "nobody");
        counted.map(|entry| entry["count"].as_u64().unwrap()).sum::<u64>() == 8000
    });
    assert!(entries(&keyed).len() < 300, "{} lines", entries(&keyed).len());
    let file = std::fs::read_to_string(server.data().join("access.jsonl")).unwrap();
    assert!(file.lines().count() < 300 && file.contains("/v1/keys"), "{file}");
    let more = server.log().lines().count() - before;
    assert!(more < 300, "{more} lines in the server's log");
}

#[test]
fn aggregated_access_log_counts_are_flushed_on_stop() {
    let keyed = start(Options::default());
    for _ in 0..50 {
        let request = keyed.request(&format!("caisson_{:064}", 1), Method::GET, "/v1/jobs");
        keyed.server.send(request).expect_problem(401, "key_unknown");
    }
    keyed.server.stop();
    let file = std::fs::read_to_string(keyed.server.data().join("access.jsonl")).unwrap();
    let lines: Vec<Value> = file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(count_with_status(&lines, 401), 50, "{file}");
}

#[test]
fn cross_origin_attempts_are_logged_with_their_source_address() {
    let keyed = start(Options::default());
    let request =
        keyed.request(&keyed.admin, Method::POST, "/v1/jobs").header("origin", "http://evil.example");
    keyed.server.send(request.json(&json!({}))).expect_problem(403, "origin_not_allowed");
    let told = entries(&keyed);
    assert_eq!(
        (&told[0]["who"], &told[0]["path"], &told[0]["status"], &told[0]["from"]),
        (&json!("nobody"), &json!("/v1/jobs"), &json!(403), &json!("127.0.0.1")),
        "{told:?}"
    );
    let request = keyed.request(&keyed.admin, Method::GET, "/v1/models").header("host", "evil.example");
    keyed.server.send(request).expect_problem(421, "host_not_allowed");
    wait_until("the other name is told of", || is_logged(&keyed, "GET /v1/models"));
}

#[test]
fn floods_of_headers_and_cookies_are_refused() {
    let keyed = start(Options::default());
    let many: String = (0..5000).map(|number| format!("X-H{number}: x\r\n")).collect();
    let answer = RawConnection::exchange(
        keyed.server.port,
        &format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"),
    );
    assert!(answer.starts_with("HTTP/1.1 431"), "{}", &answer[..answer.len().min(200)]);
    let cookies = "caisson_session=x.1.y; ".repeat(1000);
    let request =
        format!("GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: {cookies}\r\n\r\n");
    let answer = RawConnection::exchange(keyed.server.port, &request);
    assert!(answer.starts_with("HTTP/1.1 401"), "{}", &answer[..answer.len().min(200)]);
    let long = format!(
        "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
        "a".repeat(20_000)
    );
    let answer = RawConnection::exchange(keyed.server.port, &long);
    assert!(answer.starts_with("HTTP/1.1 401"), "{}", &answer[..answer.len().min(200)]);
    keyed.get(&keyed.admin, "/v1/jobs").expect(200);
}

#[test]
fn websocket_flood_does_not_block_other_clients() {
    let keyed = start(Options { config: "[http]\nmax_connections = 64\n".into(), ..Options::default() });
    let ada = keyed.key("ada", "submitter", &json!({"requests_per_second": 500}));
    let made = keyed.post(&ada, "/v1/sandboxes", &json!({})).expect(201).json();
    let id = made["sandbox_id"].as_str().unwrap();
    let bearer = format!("Bearer {ada}");
    let open = || {
        Socket::try_open(
            &keyed.server,
            &format!("/v1/sandboxes/{id}/exec/stream"),
            &[("authorization", &bearer)],
        )
    };
    // Half of all connections are WebSockets that send nothing; one more keeps sending nonsense.
    let silent: Vec<Socket> = (0..31).map(|_| open().expect("a socket")).collect();
    let mut loud = open().expect("a socket");
    let nonsense = vec![b'x'; 64 * 1024];
    // How much of it the server accepts does not matter, only that it closes the connection in the end.
    for _ in 0..20 {
        if !loud.try_send_bytes(&nonsense) {
            break;
        }
    }
    while !matches!(loud.hear(), Said::Closed(_)) {}
    for _ in 0..200 {
        keyed.get(&keyed.admin, "/v1/models").expect(200);
    }
    let refused = (0..40)
        .filter(|_| Socket::try_open(&keyed.server, &format!("/v1/sandboxes/{id}/terminal"), &[]).is_err());
    assert_eq!(refused.count(), 40, "without a key none is opened");
    drop(silent);
    keyed.post(&ada, &format!("/v1/sandboxes/{id}/exec"), &json!({"command": "true"})).expect(200);
    keyed.delete(&ada, &format!("/v1/sandboxes/{id}")).expect(204);
}
