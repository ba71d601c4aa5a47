//! The only way out of a sandbox: package registries by default, everything else refused with an explanation.

use e2e::{Event, Follower, Job, Server, shell};
use serde_json::{Value, json};

fn run<'a>(server: &'a Server, egress: &Value, command: &str) -> (Job<'a>, Follower<'a>) {
    let job = server.schedule(
        &json!({"steps": [{"tool": "shell", "command": command, "timeout_s": 240}], "egress": egress}),
    );
    let mut events = job.follow();
    events.until_end();
    (job, events)
}

/// Connections in the log: what happened (`opened`, `closed`, `refused`), the host name, and the event's data.
fn connections(events: &Follower<'_>) -> Vec<(String, String, Value)> {
    let egress = events.events.iter().filter(|event| event.is("egress")).map(Event::data);
    egress
        .map(|data| {
            let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
            (text("event"), text("host"), data.clone())
        })
        .collect()
}

#[track_caller]
fn assert_refused(events: &Follower<'_>, host: &str, code: &str) {
    let list = connections(events);
    let refused = list.iter().find(|(event, name, _)| event == "refused" && name == host);
    let (_, _, data) = refused.unwrap_or_else(|| panic!("no refusal of {host} is in the log: {list:?}"));
    assert_eq!(data["code"], code, "{data}");
    assert!(!data["reason"].as_str().unwrap_or_default().is_empty(), "{data}");
    assert!(!list.iter().any(|(event, name, _)| event == "opened" && name == host), "{list:?}");
}

/// Fetches a URL through the proxy and prints status and body.
fn fetch(url: &str) -> String {
    format!("curl -sS -m 30 -w '\\nstatus %{{http_code}}\\n' {url} 2>&1; true")
}

#[test]
fn pip_installs_a_small_package() {
    let server = Server::start();
    let install = "python3 -m pip install --no-cache-dir --target lib six && PYTHONPATH=lib python3 -c 'import six; print(six.__version__)'";
    let (job, events) = run(&server, &json!("packages"), install);
    assert_eq!(job.status()["status"], "complete", "{}\n{}", events.output("step-1.1", ""), events.summary());
    let list = connections(&events);
    for event in ["opened", "closed"] {
        assert!(
            list.iter().any(|(kind, host, _)| kind == event && host.contains("pypi")),
            "{event}: {list:?}"
        );
    }
    let closed = list.iter().find(|(kind, _, _)| kind == "closed").unwrap();
    assert!(closed.2["bytes_down"].as_u64().unwrap() > 0, "{closed:?}");
    server.assert_nothing_left();
}

#[test]
fn npm_installs_a_small_package() {
    let server = Server::start();
    let install = "npm install --no-audit --no-fund --no-update-notifier is-number && node -e 'console.log(require(\"is-number\")(42))'";
    let (job, events) = run(&server, &json!("packages"), install);
    assert_eq!(job.status()["status"], "complete", "{}\n{}", events.output("step-1.1", ""), events.summary());
    assert!(events.output("step-1.1", "stdout").ends_with("true\n"));
    assert!(connections(&events).iter().any(|(kind, host, _)| kind == "opened" && host.contains("npmjs")));
}

#[test]
fn host_not_on_the_list_is_refused_with_an_explanation() {
    let server = Server::start();
    let (_, events) = run(&server, &json!("packages"), &fetch("http://example.org/"));
    let output = events.output("step-1.1", "stdout");
    assert!(output.contains("status 403") && output.contains("example.org"), "{output}");
    assert!(output.contains("not_in_packages") && output.contains("allow"), "no explanation: {output}");
    assert_refused(&events, "example.org", "not_in_packages");
}

#[test]
fn refusal_hidden_by_the_client_is_in_the_call_result() {
    let server = Server::start();
    let job = server.schedule(&json!({
        "steps": [
            shell("curl -sS -m 60 https://example.org/ || true; curl -sS -m 60 https://example.org/again || true"),
            shell("touch done; until [ -e go ]; do sleep 0.05; done"),
        ],
        "egress": "off",
    }));
    let mut events = job.follow();
    events.until("the first step is over", |event| event.is("call_ended") && event.call() == "step-1.1");
    let ended = events.events.iter().find(|event| event.is("call_ended") && event.call() == "step-1.1");
    let note = ended.unwrap().data()["note"].as_str().unwrap_or_default().to_owned();
    assert_eq!(note.lines().count(), 1, "each thing once: {note}");
    for words in
        ["example.org:443 refused", "(egress_off)", "to allow it: write", "the request egress-1 waits"]
    {
        assert!(note.contains(words), "{words}: {note}");
    }
    let said = job.exec("curl -sS -m 60 https://example.net/; true").expect(200).json();
    assert!(said["note"].as_str().unwrap_or_default().contains("example.net:443 refused"), "{said}");
    let said = job.exec("true").expect(200).json();
    assert_eq!(said["note"], Value::Null, "{said}");
    let (_, _, refused) = connections(&events).remove(0);
    assert!(refused["remedy"].as_str().unwrap_or_default().contains("example.org"), "{refused}");
    job.touch("go");
    events.until_end();
}

#[test]
fn allow_list_allows_only_its_hosts() {
    let server = Server::start();
    let both = format!("{}\n{}", fetch("http://example.org/"), fetch("http://allowed.invalid/"));
    let (_, events) = run(&server, &json!({"allow": ["allowed.invalid"]}), &both);
    assert_refused(&events, "example.org", "not_in_list");
    // The host does not exist, so the connection fails; but the policy must allow it.
    let list = connections(&events);
    let passed = list.iter().any(|(_, host, data)| host == "allowed.invalid" && data["verdict"] != "refused");
    assert!(passed, "{list:?}");
}

#[test]
fn private_loopback_and_metadata_addresses_are_refused_with_open_egress() {
    let server = Server::start();
    let port = server.port;
    let hosts =
        ["169.254.169.254", "10.0.0.1", "192.168.1.1", "172.16.0.1", "127.0.0.2", "0.0.0.0", "100.64.0.1"];
    let commands: Vec<String> = hosts
        .iter()
        .map(|host| fetch(&format!("--noproxy '' --proxy $http_proxy http://{host}:{port}/healthz")))
        .collect();
    let (_, events) = run(&server, &json!("open"), &commands.join("\n"));
    let output = events.output("step-1.1", "stdout");
    assert_eq!(output.matches("status 403").count(), hosts.len(), "{output}");
    for host in hosts {
        assert_refused(&events, host, "refused_range");
    }
}

#[test]
fn a_name_that_resolves_to_the_host_itself_is_refused() {
    let server = Server::start();
    let command =
        fetch(&format!("--noproxy '' --proxy $http_proxy http://localhost:{}/healthz", server.port));
    let (_, events) = run(&server, &json!("open"), &command);
    assert!(!events.output("step-1.1", "stdout").contains("status 200"), "the API was reached from inside");
    assert_refused(&events, "localhost", "refused_range");
}

#[test]
fn the_api_cannot_be_reached_from_inside() {
    let server = Server::start();
    let port = server.port;
    let command = format!(
        "for host in 127.0.0.1 localhost [::1]; do curl --noproxy '*' -sS -m 5 http://$host:{port}/healthz; done; true"
    );
    let (_, events) = run(&server, &json!("open"), &command);
    assert_eq!(events.output("step-1.1", "stdout"), "");
}

#[test]
fn egress_off_refuses_everything_and_says_so() {
    let server = Server::start();
    let (_, events) = run(&server, &json!("off"), &fetch("http://example.org/simple/"));
    let output = events.output("step-1.1", "stdout");
    assert!(output.contains("status 403") && output.contains("egress_off"), "{output}");
    assert_refused(&events, "example.org", "egress_off");
}

#[test]
fn bypassing_the_proxy_fails_at_once() {
    let server = Server::start();
    let code = "import socket, time
def attempt(name, run):
    started = time.monotonic()
    try:
        run()
        print(name, 'SUCCEEDED')
    except OSError as error:
        print(name, 'refused', 'quickly' if time.monotonic() - started < 5 else 'SLOWLY')
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.sendto(b'x', ('8.8.8.8', 53))
attempt('tcp', lambda: socket.create_connection(('1.1.1.1', 443), 30))
attempt('tcp6', lambda: socket.create_connection(('2606:4700:4700::1111', 443), 30))
attempt('dns', lambda: socket.getaddrinfo('example.org', 443))
attempt('udp', udp)
attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
";
    let job = server.schedule(&json!({"steps": [{"tool": "python", "code": code}], "egress": "open"}));
    let mut events = job.follow();
    events.until_end();
    let output = events.output("step-1.1", "stdout");
    assert_eq!(output.lines().count(), 6, "{output}{}", events.output("step-1.1", "stderr"));
    for line in output.lines() {
        assert!(line.ends_with("refused quickly"), "{output}");
    }
}

#[test]
fn egress_works_again_after_a_killed_server() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("echo ready; until [ -e go ]; do sleep 0.05; done; curl -sS -m 30 -o /dev/null -w '%{http_code}' http://example.org/; true")]);
    let mut events = job.follow();
    events.until("the first output", |event| event.is("call_output"));
    server.kill9();
    server.restart();
    job.touch("go");
    events.until_end();
    // The new server's proxy serves the existing sandbox.
    assert!(events.output("step-1.1", "stdout").ends_with("403"), "{}", events.output("step-1.1", ""));
    assert_refused(&events, "example.org", "not_in_packages");
}

#[test]
fn unknown_egress_policy_is_refused() {
    let server = Server::start();
    for egress in [json!("wide"), json!({"deny": ["x"]}), json!({"allow": ["http://x/"]}), json!(42)] {
        let answer = server.post("/schedule", &json!({"steps": [shell("true")], "egress": egress}));
        assert_eq!((answer.status, &answer.json()["code"]), (422, &json!("invalid_field")), "{egress}");
    }
}
