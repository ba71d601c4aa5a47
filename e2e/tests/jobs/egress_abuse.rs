//! Hostile clients, through the real guest: the guest and the proxy stay up and serve the next client.

use e2e::{Event, ExternalServer, Options, Server, respond};
use serde_json::json;

fn server() -> Server {
    let config = "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\n".to_owned();
    Server::start_with(Options { config, ..Options::default() })
}

/// Runs Python in a job with open egress.
fn run(server: &Server, outside: &ExternalServer, code: &str) -> (String, Vec<serde_json::Value>) {
    let code = format!(
        "import socket\nPORT = {}\ndef proxy():\n    return socket.create_connection(('127.0.0.1', 3128), 60)\n\
         def answer(request):\n    s = proxy()\n    s.sendall(request)\n    return s.recv(65536).decode('latin-1')\n{code}",
        outside.port
    );
    // The guest and its processes share the host's limit of open files; fewer processes may each have more.
    let limits = json!({"pids": 32});
    let job = server
        .schedule(&json!({"steps": [{"tool": "python", "code": code}], "egress": "open", "limits": limits}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}\n{}", events.output("step-1.1", ""), events.summary());
    let logged = events.events.iter().filter(|event| event.is("egress")).map(Event::data).cloned();
    (events.output("step-1.1", "stdout"), logged.collect())
}

#[test]
fn smtp_overlong_names_and_garbage_are_refused_and_logged() {
    let (server, outside) = (server(), ExternalServer::http(|_, client| respond(client, b"hello")));
    let code = "
print(answer(b'CONNECT mail.invalid:25 HTTP/1.1\\r\\n\\r\\n').splitlines()[0])
print(answer(b'CONNECT ' + b'a' * 10000 + b'.invalid:443 HTTP/1.1\\r\\n\\r\\n').splitlines()[0])
print(answer(b'\\x16\\x03\\x01 nonsense\\r\\n\\r\\n')[:12])
print(answer(b'GET http://localhost:%d/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' % PORT).splitlines()[0])
";
    let (output, logged) = run(&server, &outside, code);
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].contains("403") && lines[0].contains("port_not_allowed"), "{output}");
    assert!(lines[1].starts_with("HTTP/1.1 4"), "{output}");
    assert!(lines[3].contains("200"), "{output}");
    let codes: Vec<&str> = logged.iter().filter_map(|line| line["code"].as_str()).collect();
    assert!(codes.contains(&"port_not_allowed") && codes.contains(&"bad_request"), "{codes:?}");
    // A name that long is truncated in the log.
    assert!(logged.iter().all(|line| line.to_string().len() < 4000), "{logged:?}");
}

#[test]
fn ten_thousand_connections_do_not_break_the_egress_proxy() {
    let (server, outside) = (server(), ExternalServer::http(|_, client| respond(client, b"hello")));
    let code = "
import time
held, refused = [], 0
for number in range(10000):
    s = socket.socket()
    s.setblocking(False)
    try:
        s.connect(('127.0.0.1', 3128))
    except BlockingIOError:
        pass
    except OSError:
        refused += 1
        continue
    held.append(s)
    # A part of a request, and never the rest.
    try:
        s.send(b'GET http://localhost')
    except OSError:
        pass
print('held', len(held) + refused)
for s in held:
    s.close()
print(answer(b'GET http://localhost:%d/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' % PORT).splitlines()[0])
";
    let (output, _) = run(&server, &outside, code);
    assert!(output.starts_with("held 10000\n") && output.contains("200"), "{output}");
}

#[test]
fn half_closed_streams_and_protocol_upgrades_work_in_a_tunnel() {
    let server = server();
    let outside = ExternalServer::http(|head, client| {
        if head.to_lowercase().contains("upgrade: websocket") {
            return client.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nframes");
        }
        respond(client, b"after the half close")
    });
    let code = "
def tunnel():
    s = proxy()
    s.sendall(b'CONNECT localhost:%d HTTP/1.1\\r\\n\\r\\n' % PORT)
    assert b' 200 ' in s.recv(4096)
    return s
def rest(s):
    data = b''
    while True:
        piece = s.recv(4096)
        if not piece:
            return data.decode()
        data += piece
s = tunnel()
s.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
s.shutdown(socket.SHUT_WR)
print(rest(s).splitlines()[-1])
s = tunnel()
s.sendall(b'GET /ws HTTP/1.1\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n')
print(rest(s).splitlines()[-1])
";
    let (output, _) = run(&server, &outside, code);
    assert_eq!(output, "after the half close\nframes\n");
}
