//! Multipart forms sent twice or cut off, and paths that lead out of a draft's files.

use std::io::Read as _;

use e2e::{Answer, RawConnection, Server, shell, wait_until};
use reqwest::Method;
use reqwest::blocking::multipart::{Form, Part};
use serde_json::json;

#[track_caller]
fn send(server: &Server, key: &str, files: &[(&str, &str)]) -> Answer {
    let job = json!({"steps": [shell("cat *")]}).to_string();
    let mut form = Form::new().text("job", job);
    for (name, content) in files {
        form = form.part("file", Part::bytes(content.as_bytes().to_vec()).file_name((*name).to_owned()));
    }
    let form_type = format!("multipart/form-data; boundary={}", form.boundary());
    let mut body = Vec::new();
    form.into_reader().read_to_end(&mut body).unwrap();
    let request = server.request(Method::POST, "/v1/jobs").header("Content-Type", form_type);
    server.send(request.header("Idempotency-Key", key).body(body))
}

/// Sends the beginning of a form whose file never ends, and waits until there are this many jobs.
fn begin(server: &Server, key: &str, jobs_then: usize) -> RawConnection {
    let mut connection = RawConnection::open(server.port);
    let job = json!({"steps": [shell("cat *")]});
    let body = format!(
        "--x\r\nContent-Disposition: form-data; name=\"job\"\r\n\r\n{job}\r\n\
         --x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nhalf "
    );
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n\
         Idempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n",
        body.len() + 1000
    );
    connection.write(head.as_bytes());
    connection.write(body.as_bytes());
    wait_until("the draft is there", || jobs(server) == jobs_then);
    connection
}

fn jobs(server: &Server) -> usize {
    server.get("/v1/jobs").json()["jobs"].as_array().unwrap().len()
}

#[test]
fn repeated_form_is_one_job_and_different_files_are_refused() {
    let server = Server::start();
    let first = send(&server, "k", &[("a", "one"), ("b", "two")]).expect(202).json();
    let id = first["job_id"].as_str().unwrap();
    assert_eq!(send(&server, "k", &[("a", "one"), ("b", "two")]).expect(200).json()["job_id"], id);
    for other in [
        &[("a", "one"), ("b", "twO")][..],
        &[("a", "one")],
        &[("a", "one"), ("c", "two")],
        &[("a", "onet"), ("b", "wo")],
        &[],
    ] {
        send(&server, "k", other).expect_problem(422, "idempotency_mismatch");
    }
    let plain = json!({"steps": [shell("cat *")], "start": false});
    let request = server.request(Method::POST, "/v1/jobs").header("Idempotency-Key", "k").json(&plain);
    server.send(request).expect_problem(422, "idempotency_mismatch");
    server.job(id).wait_for("complete");
    // The same holds after the job has ended and the server was restarted.
    server.kill9();
    server.restart();
    assert_eq!(send(&server, "k", &[("a", "one"), ("b", "two")]).expect(200).json()["job_id"], id);
    assert_eq!(jobs(&server), 1);
    server.assert_nothing_left();
}

#[test]
fn incomplete_form_cannot_be_repeated_or_started() {
    let server = Server::start();
    let connection = begin(&server, "k", 1);
    send(&server, "k", &[("a", "half ")]).expect_problem(409, "idempotency_pending");
    let id = server.get("/v1/jobs").json()["jobs"][0]["job_id"].as_str().unwrap().to_owned();
    server.job(&id).post("start", &json!({})).expect_problem(409, "wrong_state");
    drop(connection);
    wait_until("the draft is gone", || jobs(&server) == 0);
    send(&server, "k", &[("a", "whole")]).expect(202);
}

#[test]
fn server_killed_during_a_form_leaves_no_draft() {
    let server = Server::start();
    let kept = server.post("/v1/jobs", &json!({"start": false, "steps": [shell("true")]})).expect(202).json();
    server.job(kept["job_id"].as_str().unwrap()).put_file("a", "x").expect(200);
    let _connection = begin(&server, "k", 2);
    server.kill9();
    server.restart();
    let left = server.get("/v1/jobs").json();
    assert_eq!(left["jobs"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(left["jobs"][0]["job_id"], kept["job_id"]);
    assert_eq!(std::fs::read_dir(server.data().join("jobs")).unwrap().count(), 1);
    let again = send(&server, "k", &[("a", "whole")]).expect(202).json();
    server.job(again["job_id"].as_str().unwrap()).wait_for("complete");
}

#[test]
fn no_path_escapes_the_files_of_a_draft() {
    let server = Server::start();
    let accepted = server.post("/v1/jobs", &json!({"start": false, "steps": [shell("true")]})).expect(202);
    let id = accepted.json()["job_id"].as_str().unwrap().to_owned();
    server.job(&id).put_file("inside.txt", "inside").expect(200);
    let secret = "the secret of the host";
    std::fs::write(server.data().join("jobs").join(&id).join("secret"), secret).unwrap();
    let ask = |method: &str, path: &str| {
        let request = format!(
            "{method} /v1/jobs/{id}/files{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        RawConnection::exchange(server.port, &request)
    };
    assert!(ask("GET", "/inside.txt").starts_with("HTTP/1.1 200"));
    for path in [
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/x/../../secret",
        "/x/%2e%2e/%2e%2e/secret",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/../../../../../../../../../../etc/passwd",
        "/inside.txt/../../secret",
        "/.%00./secret",
        "?depth=1&path=../",
        "/..?depth=2",
        "/%2e%2e%2f?depth=2",
    ] {
        for method in ["GET", "DELETE"] {
            let answer = ask(method, path);
            let status: u16 = answer.split(' ').nth(1).unwrap_or_default().parse().unwrap_or(0);
            assert!((400..500).contains(&status), "{method} {path}: {answer}");
            assert!(!answer.contains(secret) && !answer.contains("root:"), "{method} {path}: {answer}");
        }
    }
    server.job(&id).put_file("link?kind=symlink", "/etc/passwd").expect_problem(403, "permission_denied");
    assert_eq!(server.job(&id).get_file("inside.txt").expect(200).text(), "inside");
}
