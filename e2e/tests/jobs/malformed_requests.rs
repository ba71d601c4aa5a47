//! Malformed input: always answered with a problem with a stable code, or a failed step with a reason. Nothing is
//! lost or hangs.

use e2e::{RawConnection, Server, shell};
use reqwest::Method;
use serde_json::{Value, json};

/// Asserts that the server still accepts and completes jobs.
#[track_caller]
fn assert_still_works(server: &Server) {
    server.schedule_steps(&[shell("true")]).wait_for("complete");
}

fn post_raw(server: &Server, body: impl Into<reqwest::blocking::Body>) -> e2e::Answer {
    server
        .send(server.request(Method::POST, "/schedule").header("Content-Type", "application/json").body(body))
}

#[test]
fn malformed_json_is_refused_with_its_position() {
    let server = Server::start();
    for body in ["{\"steps\": [", "nonsense", "", "{\"steps\": [}]}", "\u{feff}{}"] {
        let detail = post_raw(&server, body).expect_problem(400, "malformed_json");
        assert!(!detail.is_empty());
    }
    let problem = post_raw(&server, "{\n\"steps\": [}]}").json();
    assert_eq!(problem["line"], 2, "{problem}");
    post_raw(&server, vec![0xff, 0xfe, 0x00]).expect_problem(400, "malformed_json");
    assert_still_works(&server);
}

#[test]
fn a_body_of_the_wrong_shape_is_refused() {
    let server = Server::start();
    for body in [
        "[]",
        "null",
        "42",
        "\"text\"",
        "{\"steps\": {}}",
        "{\"steps\": [42]}",
        "{\"steps\": null, \"task\": 7}",
    ] {
        post_raw(&server, body).expect_problem(422, "invalid_field");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(post_raw(&server, format!("{{\"egress\": {deep}")).status / 100, 4);
    assert_still_works(&server);
}

#[test]
fn an_unknown_field_is_refused_by_name() {
    let server = Server::start();
    for body in [
        json!({"steps": [shell("true")], "colour": 1}),
        json!({"steps": [{"tool": "shell", "command": "true", "colour": 1}]}),
        json!({"steps": [shell("true")], "limits": {"colour": 1}}),
    ] {
        let detail = server.post("/schedule", &body).expect_problem(422, "invalid_field");
        assert!(detail.contains("colour"), "{detail}");
    }
}

#[test]
fn unknown_tool_is_refused_with_the_known_ones() {
    let server = Server::start();
    let detail =
        server.post("/schedule", &json!({"steps": [{"tool": "fly"}]})).expect_problem(422, "invalid_field");
    assert!(detail.contains("fly") && detail.contains("write_file"), "{detail}");
}

#[test]
fn job_needs_either_a_task_or_steps() {
    let server = Server::start();
    for body in [
        json!({}),
        json!({"task": ""}),
        json!({"task": "  \n "}),
        json!({"steps": []}),
        json!({"task": "x", "steps": [shell("true")]}),
    ] {
        server.post("/schedule", &body).expect_problem(422, "invalid_field");
    }
    let empty = server.request(Method::POST, "/submit").header("Content-Type", "text/plain").body("");
    server.send(empty).expect_problem(422, "invalid_field");
    assert_eq!(server.get("/v1/jobs").json()["jobs"], json!([]));
}

#[test]
fn unsupported_media_type_is_refused() {
    let server = Server::start();
    let request =
        server.request(Method::POST, "/schedule").header("Content-Type", "application/xml").body("<steps/>");
    server.send(request).expect_problem(415, "unsupported_media_type");
}

#[test]
fn a_body_of_100_megabytes_is_refused_before_it_is_read() {
    let server = Server::start();
    let head = format!(
        "POST /schedule HTTP/1.1\r\nHost: localhost:{}\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n",
        server.port
    );
    let mut announced = RawConnection::open(server.port);
    announced.write(head.as_bytes());
    let answer = announced.read_to_end();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("body_too_large"), "{answer}");

    let mut chunked = RawConnection::open(server.port);
    let head = head.replace("Content-Length: 100000000", "Transfer-Encoding: chunked");
    chunked.write(head.as_bytes());
    let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 0x10_0000], b"\r\n"].concat();
    for _ in 0..100 {
        if !chunked.write(&chunk) {
            break;
        }
    }
    chunked.finish();
    // The server may close the connection before everything is sent; what counts is that it does not accept the body.
    let answer = chunked.read_to_end();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert_still_works(&server);
}

#[test]
fn output_that_is_binary_or_not_utf8_is_kept_byte_for_byte() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell(
        "printf '\\xff\\xfe\\x00\\x80binary'; printf '\\n\\xc3' >&2; printf '\\xff' > file.bin",
    )]);
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    let chunk = events
        .events
        .iter()
        .find(|event| event.is("call_output") && event.data()["stream"] == "stdout")
        .unwrap();
    assert_eq!(
        (&chunk.data()["base64"], &chunk.data()["text"]),
        (&json!(true), &json!("//4AgGJpbmFyeQ==")),
        "{:?}",
        chunk.json
    );
    assert_eq!(job.output().read("file.bin"), [0xff]);
    assert_eq!(job.get("log").status, 200);
}

#[test]
fn characters_split_across_reads_are_kept_intact() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("printf '\\xe2\\x98'; sleep 0.3; printf '\\x83 snow'")]);
    let mut events = job.follow();
    events.until_end();
    let bytes: u64 = events
        .events
        .iter()
        .filter(|event| event.is("call_ended"))
        .filter_map(|event| event.data()["output_bytes"].as_u64())
        .sum();
    assert_eq!(bytes, 8, "{}", events.summary());
    let log = job.get("log").text();
    assert!(log.contains("☃ snow") || log.contains(" snow"), "{log}");
}

#[test]
fn hundred_malformed_requests_do_not_harm_the_server() {
    let server = Server::start();
    let words =
        ["steps", "task", "tool", "shell", "command", "limits", "\u{1F980}", "\\u0000", "1e999", "-0"];
    for round in 0..100_usize {
        let pick = |offset: usize| words[(round * 7 + offset * 3) % words.len()];
        let body = format!(
            "{{\"{}\": [{{\"{}\": \"{}\", \"{}\": {}}}]}}",
            pick(0),
            pick(1),
            pick(2),
            pick(3),
            round
        );
        let answer = post_raw(&server, body.clone());
        assert!(answer.status == 202 || answer.status / 100 == 4, "{body}: {}", answer.text());
        assert!(answer.json().get("code").is_some() || answer.status == 202);
    }
    let page: Value = server.get("/v1/jobs").expect(200).json();
    assert!(page["jobs"].is_array());
    assert_still_works(&server);
}
