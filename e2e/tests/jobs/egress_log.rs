//! Records of connections: the report, the list of the job, digests of downloads, the learned policy; and a job's
//! total traffic allowance.

use e2e::{Event, ExternalServer, Options, Server, respond, shell};
use serde_json::{Value, json};

const BODY: &[u8] = b"hello";
const BODY_SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn server() -> Server {
    let config = "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\n".to_owned();
    Server::start_with(Options { config, ..Options::default() })
}

fn fetch(port: u16) -> String {
    format!(
        "curl -sS -m 100 --noproxy '' -o /dev/null -w '%{{http_code}}\\n' http://localhost:{port}/file?q=1"
    )
}

#[test]
fn connections_are_in_the_report_and_the_list_and_downloads_have_digests() {
    let server = server();
    let outside = ExternalServer::http(|_, client| respond(client, BODY));
    let command = format!("{}; curl -sS -m 60 -o /dev/null http://example.org/", fetch(outside.port));
    let allowed = json!({"allow": [format!("localhost:{}", outside.port)]});
    let job = server.schedule(&json!({"steps": [shell(&command)], "egress": allowed}));
    let mut events = job.follow();
    events.until_end();
    let report = job.get("network").expect(200).json();
    assert_eq!(report["totals"]["allowed"], 1, "{report}");
    assert_eq!(report["totals"]["refused"], 1, "{report}");
    assert_eq!(report["learned"], allowed, "{report}");
    let connection = &report["connections"][0];
    assert_eq!(connection["call"], "step-1.1", "{connection}");
    assert_eq!(connection["address"], "127.0.0.1", "{connection}");
    assert_eq!(connection["rule"], format!("localhost:{}", outside.port), "{connection}");
    assert!(connection["bytes_down"].as_u64().unwrap() > 5, "{connection}");
    assert_eq!(report["downloads"][0]["sha256"], BODY_SHA256, "{report}");
    let download = job.manifest()["provenance"][0].clone();
    assert_eq!(download["url"], format!("http://localhost:{}/file", outside.port), "{download}");
    assert_eq!(
        (&download["sha256"], &download["bytes"], &download["status"]),
        (&json!(BODY_SHA256), &json!(5), &json!(200))
    );
    let lines = job.download("audit/network.jsonl").text();
    let listed: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |kind: &str| listed.iter().filter(|line| line["event"] == kind).count();
    assert_eq!(
        (count("opened"), count("closed"), count("refused"), count("fetched")),
        (1, 1, 1, 1),
        "{lines}"
    );
    let kept = server.data().join("jobs").join(&job.id).join("audit/network.jsonl");
    assert!(std::fs::read_to_string(kept).unwrap().starts_with(&lines));
}

#[test]
fn downloads_before_a_restart_are_in_the_manifest() {
    let server = server();
    let outside = ExternalServer::http(|_, client| respond(client, BODY));
    let wait = shell("echo waits; until [ -e go ]; do sleep 0.05; done");
    let job = server.schedule(&json!({"steps": [shell(&fetch(outside.port)), wait], "egress": "learn"}));
    let mut events = job.follow();
    events.until("the second step", |event| event.is("call_output") && event.data()["text"] == "waits\n");
    server.kill9();
    server.restart();
    job.touch("go");
    events.until_end();
    assert_eq!(job.manifest()["provenance"][0]["sha256"], BODY_SHA256);
    let learned = job.download("learned-egress.json").json();
    assert_eq!(learned, json!({"egress": {"allow": [format!("localhost:{}", outside.port)]}}));
}

#[test]
fn learning_mode_allows_everything_and_writes_the_required_policy() {
    let server = server();
    let outside = ExternalServer::http(|_, client| respond(client, BODY));
    let job = server.schedule(&json!({"steps": [shell(&fetch(outside.port))], "egress": "learn"}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "200\n", "{}", events.summary());
    let learned = job.download("learned-egress.json").json();
    assert_eq!(learned, json!({"egress": {"allow": [format!("localhost:{}", outside.port)]}}));
    // The learned policy can be used as is for the next job.
    let job = server.schedule(&json!({"steps": [shell(&fetch(outside.port))], "egress": learned["egress"]}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "200\n", "{}", events.summary());
}

#[test]
fn traffic_allowance_ends_endless_responses_and_connections() {
    let server = server();
    let outside = ExternalServer::http(|_, client| {
        client.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
        loop {
            client.write_all(&[b'x'; 4096])?;
        }
    });
    let command = format!("{0}; {0}", fetch(outside.port));
    let network = json!({"bytes": 200_000, "connections": 5});
    let wanted = json!({"steps": [shell(&command)], "egress": "open", "network": network});
    let job = server.schedule(&wanted);
    let mut events = job.follow();
    events.until_end();
    let used_up = |event: &Event| event.is("egress") && event.data()["code"] == "budget_exhausted";
    // The first download is cut off, the second is refused.
    assert_eq!(events.count(used_up), 2, "{}", events.summary());
    assert!(events.output("step-1.1", "stdout").ends_with("403\n"), "{}", events.output("step-1.1", ""));
    let small = ExternalServer::http(|_, client| respond(client, BODY));
    let command = vec![fetch(small.port); 6].join("; ");
    let job = server
        .schedule(&json!({"steps": [shell(&command)], "egress": "open", "network": {"connections": 5}}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "200\n".repeat(5) + "403\n", "{}", events.summary());
    for (wrong, field) in [(json!({"bytes": 0}), "network.bytes"), (json!({"rate": 1}), "network")] {
        let refusal =
            server.post("/schedule", &json!({"steps": [shell("true")], "network": wrong})).expect(422).json();
        assert!(refusal.to_string().contains(field), "{refusal}");
    }
}

#[test]
fn download_cut_by_a_crash_fails_cleanly_and_the_next_works() {
    let server = server();
    let outside = ExternalServer::http(|head, client| {
        if head.contains("/whole") {
            return respond(client, BODY);
        }
        client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")?;
        client.flush()?;
        loop {
            std::thread::park();
        }
    });
    let place = format!("http://localhost:{}", outside.port);
    let command = format!(
        "curl -sS -m 100 --noproxy '' -N {place}/slow; echo \"exit $?\"; curl -sS -m 100 --noproxy '' --retry 5 --retry-all-errors {place}/whole"
    );
    let allowed = json!({"allow": [format!("localhost:{}", outside.port)]});
    let job = server.schedule(&json!({"steps": [shell(&command)], "egress": allowed}));
    let mut events = job.follow();
    events.until("half of it", |event| event.is("call_output") && event.data()["text"] == "half");
    server.kill9();
    server.restart();
    events.until_end();
    let output = events.output("step-1.1", "stdout");
    assert!(output.contains("exit 18") || output.contains("exit 56"), "{output}");
    assert!(output.ends_with("hello"), "{output}");
    // Connections that were open at the crash have a `closed` event, too.
    let count = |kind: &str| events.count(|event| event.is("egress") && event.data()["event"] == kind);
    assert_eq!(count("opened"), count("closed"), "{}", events.summary());
}
