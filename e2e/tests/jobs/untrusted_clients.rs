//! Unwanted callers: foreign sites, slow clients, garbage; and settings that would let more of them in.

use e2e::{Options, RawConnection, Server, binary, shell};
use reqwest::Method;
use serde_json::json;

/// Asserts that the server still accepts and completes jobs.
#[track_caller]
fn assert_still_works(server: &Server) {
    server.schedule_steps(&[shell("true")]).wait_for("complete");
}

#[test]
fn a_foreign_host_is_refused() {
    let server = Server::start();
    for host in
        ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil.example"]
    {
        let request = format!("GET /v1/jobs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = RawConnection::exchange(server.port, &request);
        assert!(
            answer.starts_with("HTTP/1.1 421") && answer.contains("host_not_allowed"),
            "{host}: {answer}"
        );
    }
    let answer = RawConnection::exchange(server.port, "GET /v1/jobs HTTP/1.0\r\n\r\n");
    assert!(answer.contains(" 400 ") && answer.contains("host_missing"), "{answer}");
    for host in ["localhost", "127.0.0.1", "[::1]", &format!("localhost:{}", server.port)] {
        let request = format!("GET /v1/jobs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert!(RawConnection::exchange(server.port, &request).starts_with("HTTP/1.1 200"), "{host}");
    }
}

#[test]
fn a_page_of_another_site_cannot_submit_jobs() {
    let server = Server::start();
    let body = json!({"steps": [shell("true")]});
    for origin in ["https://evil.example", "http://localhost:1", "null", "http://127.0.0.1.evil.example"] {
        let request = server.request(Method::POST, "/schedule").header("Origin", origin).json(&body);
        server.send(request).expect_problem(403, "origin_not_allowed");
        // What a form or another simple request could send without a CORS preflight.
        for media_type in ["text/plain", "application/x-www-form-urlencoded"] {
            let simple = server
                .request(Method::POST, "/submit")
                .header("Origin", origin)
                .header("Content-Type", media_type);
            server.send(simple.body("a task")).expect_problem(403, "origin_not_allowed");
        }
    }
    let own = server.request(Method::POST, "/schedule").header("Origin", server.url("")).json(&body);
    server.send(own).expect(202);
    let preflight = server.request(Method::OPTIONS, "/schedule").header("Origin", "https://evil.example");
    let answer = server.send(preflight.header("Access-Control-Request-Method", "POST"));
    assert!(answer.header("access-control-allow-origin").is_empty());
}

#[test]
fn slow_clients_are_disconnected_and_do_not_block_others() {
    let config = "[http]\nheader_timeout_s = 2\nrequest_timeout_s = 2\n".into();
    let server = Server::start_with(Options { config, ..Options::default() });
    let mut slow: Vec<RawConnection> = (0..200).map(|_| RawConnection::open(server.port)).collect();
    for connection in &mut slow {
        connection.write(b"POST /schedule HTTP/1.1\r\nHost: localhost\r\nContent-Le");
    }
    assert_still_works(&server);
    // The server closes a connection whose head does not arrive within the timeout.
    for connection in &mut slow {
        connection.read_to_end();
    }
    let mut body = RawConnection::open(server.port);
    body.write(b"POST /schedule HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{");
    let answer = body.read_to_end();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body_timeout"), "{answer}");
    assert_still_works(&server);
}

#[test]
fn garbage_and_huge_headers_are_refused() {
    let server = Server::start();
    let answer = RawConnection::exchange(server.port, "\u{0}\u{1}\u{2} nonsense\r\n\r\n");
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    let huge = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Huge: {}\r\n\r\n", "x".repeat(1 << 20));
    let answer = RawConnection::exchange(server.port, &huge);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert_still_works(&server);
}

#[test]
fn listening_beyond_loopback_requires_an_explicit_setting() {
    for address in ["0.0.0.0", "[::]"] {
        let server = Server::prepare(Options {
            listen: vec![format!("{address}:{}", e2e::free_port())],
            ..Options::default()
        });
        let output = server.command().output().unwrap();
        let printed =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "it listens on {address}: {printed}");
        assert!(printed.contains(address.trim_matches(['[', ']'])), "{printed}");
    }
}

#[test]
fn invalid_setting_is_refused_with_file_key_and_allowed_values() {
    let server = Server::prepare(Options { config: "colour = \"red\"\n".into(), ..Options::default() });
    let output = server.command().output().unwrap();
    let printed =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{printed}");
    assert!(printed.contains("colour") && printed.contains("caisson.toml"), "{printed}");
    let output =
        std::process::Command::new(binary()).args(["serve", "--config", "/nowhere.toml"]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && printed.contains("/nowhere.toml"), "{printed}");
}
