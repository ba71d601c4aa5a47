//! Jobs with uploaded files: as a multipart form, or put into a draft. And files that must be rejected.

use std::io::{Read as _, Write as _};

use e2e::{Answer, Server, shell};
use reqwest::Method;
use reqwest::blocking::multipart::{Form, Part};
use serde_json::json;

/// A form that starts with the job.
fn form(steps: &[&str]) -> Form {
    let steps: Vec<_> = steps.iter().map(|command| shell(command)).collect();
    Form::new().text("job", json!({"steps": steps}).to_string())
}

fn file(name: &str, content: impl Into<Vec<u8>>) -> Part {
    Part::bytes(content.into()).file_name(name.to_owned())
}

#[track_caller]
fn send(server: &Server, path: &str, form: Form) -> Answer {
    let form_type = format!("multipart/form-data; boundary={}", form.boundary());
    let mut body = Vec::new();
    form.into_reader().read_to_end(&mut body).unwrap();
    server.send(server.request(Method::POST, path).header("Content-Type", form_type).body(body))
}

fn zip_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in entries {
        writer.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn tar_of(fill: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    fill(&mut builder);
    builder.into_inner().unwrap()
}

fn add(builder: &mut tar::Builder<Vec<u8>>, name: &str, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    // Written directly, because the library rejects names that lead out.
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn form_uploads_files_and_archives() {
    let server = Server::start();
    let tar = tar_of(|builder| add(builder, "bin/tool", 0o755, b"#!/bin/sh\necho from the tool\n"));
    let sent = form(&["cat a.txt deep/b.txt z/zipped.txt", "./bin/tool", "cat plain.txt"])
        .part("file", file("a.txt", "a\n"))
        .part("file", file("deep/b.txt", "b\n"))
        .text("plain.txt", "plain\n")
        .part("archive", file("some.zip", zip_of(&[("z/zipped.txt", b"zipped\n")])))
        .part("archive", file("some.tar.gz", gzip(&tar)));
    let answer = send(&server, "/v1/jobs", sent).expect(202);
    let id = answer.json()["job_id"].as_str().unwrap().to_owned();
    assert_eq!(answer.header("location"), format!("/status/{id}"));
    let job = server.job(&id);
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert_eq!(events.output("step-1.1", "stdout"), "a\nb\nzipped\n");
    assert_eq!(events.output("step-2.1", "stdout"), "from the tool\n");
    assert_eq!(job.output().text("plain.txt"), "plain\n");
    server.assert_nothing_left();
}

#[test]
fn every_submit_route_accepts_a_form_with_separate_fields() {
    let server = Server::start();
    for path in ["/schedule", "/submit", "/v1/jobs"] {
        let steps = json!([shell("cat a.txt")]).to_string();
        let sent = Form::new().text("steps", steps).part("x", file("a.txt", "a"));
        let id = send(&server, path, sent).expect(202).json()["job_id"].as_str().unwrap().to_owned();
        server.job(&id).wait_for("complete");
    }
    let task = Form::new().text("task", "Look at a.txt").part("x", file("a.txt", "a"));
    let answer = send(&server, "/v1/jobs", task).expect(202).json();
    assert!(answer["hint"].is_string(), "{answer}");
    let large = vec![7; 30 << 20];
    let sent = form(&["stat -c %s large.bin"]).part("x", file("large.bin", large));
    let id = send(&server, "/v1/jobs", sent).expect(202).json()["job_id"].as_str().unwrap().to_owned();
    let mut events = server.job(&id).follow();
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "31457280\n");
}

#[test]
fn form_field_of_the_job_is_not_mistaken_for_a_file() {
    let server = Server::start();
    for (name, text) in [("limits", "false"), ("priority", "high"), ("steps", "[]"), ("start", "perhaps")] {
        let sent = form(&["true"]).text(name, text);
        let problem = send(&server, "/v1/jobs", sent).expect(422).json();
        assert_eq!(
            (&problem["code"], &problem["field"]),
            (&json!("invalid_field"), &json!(name)),
            "{problem}"
        );
    }
    assert_eq!(server.get("/v1/jobs").expect(200).json()["jobs"], json!([]), "nothing is left of them");
    let sent = form(&["ls"]).text("start", "false").text("name", "listing");
    let id = send(&server, "/v1/jobs", sent).expect(202).json()["job_id"].as_str().unwrap().to_owned();
    let draft = server.job(&id);
    assert_eq!((&draft.status()["detail"], &draft.status()["name"]), (&json!("draft"), &json!("listing")));
    draft.post("start", &json!({})).expect(202);
    let mut events = draft.follow();
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "", "the fields are no files");
    // A part with a file name is a file, whatever the part is called.
    let sent = form(&["cat start.txt"]).part("start", file("start.txt", "a file"));
    let id = send(&server, "/v1/jobs", sent).expect(202).json()["job_id"].as_str().unwrap().to_owned();
    server.job(&id).wait_for("complete");
}

#[test]
fn draft_accepts_files_until_it_is_started() {
    let server = Server::start();
    let answer =
        server.post("/v1/jobs", &json!({"start": false, "steps": [shell("cat a.txt; ls")]})).expect(202);
    assert_eq!(answer.json()["status"], "pending");
    let job = server.job(answer.json()["job_id"].as_str().unwrap());
    assert_eq!(job.status()["detail"], "draft");
    job.put_file("a.txt", "first").expect(200);
    job.put_file("a.txt", "second\n").expect(200);
    job.put_file("gone.txt", "x").expect(200);
    assert_eq!(job.delete_file("gone.txt").status, 204);
    job.put_file("%2Fetc%2Fevil", "x").expect_problem(403, "path_outside_workspace");
    server.kill9();
    server.restart();
    assert_eq!(job.post("start", &json!({})).expect(202).json()["job_id"], job.id);
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "second\na.txt\n");
    job.post("start", &json!({})).expect_problem(409, "wrong_state");
    job.put_file("late.txt", "x").expect_problem(409, "wrong_state");
    server.assert_nothing_left();
}

#[test]
fn form_can_create_a_draft() {
    let server = Server::start();
    let job = json!({"start": false, "steps": [shell("cat a b")]}).to_string();
    let sent = Form::new().text("job", job).part("x", file("a", "a"));
    let id = send(&server, "/v1/jobs", sent).expect(202).json()["job_id"].as_str().unwrap().to_owned();
    let job = server.job(&id);
    assert_eq!(job.status()["detail"], "draft");
    job.put_file("b", "b").expect(200);
    job.post("start", &json!({})).expect(202);
    job.wait_for("complete");
}

#[test]
fn retry_runs_with_the_same_files() {
    let server = Server::start();
    let sent = form(&["cat a.txt; exit 1"]).part("x", file("a.txt", "brought along"));
    let id = send(&server, "/v1/jobs", sent).expect(202).json()["job_id"].as_str().unwrap().to_owned();
    let job = server.job(&id);
    job.wait_for("failed");
    let answer = job.post("retry", &json!({})).expect(202).json();
    let again = server.job(answer["job_id"].as_str().unwrap());
    assert_ne!(again.id, job.id);
    let mut events = again.follow();
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "brought along");
    server
        .post("/v1/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/retry", &json!({}))
        .expect_problem(404, "job_not_found");
}

#[test]
fn hostile_archives_and_names_are_refused_and_leave_nothing() {
    let server = Server::start();
    let link = tar_of(|builder| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "sneaky", "/etc/passwd").unwrap();
    });
    let hard = tar_of(|builder| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Link);
        header.set_size(0);
        builder.append_link(&mut header, "hard", "/etc/passwd").unwrap();
    });
    let device = tar_of(|builder| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Char);
        header.set_size(0);
        header.set_path("device").unwrap();
        header.set_cksum();
        builder.append(&header, std::io::empty()).unwrap();
    });
    let escape = tar_of(|builder| add(builder, "../../evil", 0o644, b"x"));
    let table = [
        ("archive", file("x.zip", zip_of(&[("../evil", b"x")])), "../evil", "archive"),
        ("archive", file("x.zip", zip_of(&[("/etc/evil", b"x")])), "/etc/evil", "archive"),
        ("archive", file("x.tar", link), "sneaky", "archive"),
        ("archive", file("x.tar.gz", gzip(&hard)), "hard", "archive"),
        ("archive", file("x.tar", device), "device", "archive"),
        ("archive", file("x.tar", escape), "../../evil", "archive"),
        ("archive", file("x.zip", b"garbage".to_vec()), "cannot be read", "archive"),
        ("archive", file("x.rar", b"garbage".to_vec()), "x.rar", "archive"),
        ("mine", file("../evil", b"x".to_vec()), "", "mine"),
        ("mine", file("/etc/evil", b"x".to_vec()), "", "mine"),
    ];
    for (part, content, named, field) in table {
        let answer = send(&server, "/v1/jobs", form(&["true"]).part(part, content));
        assert!((400..500).contains(&answer.status), "{}: {}", answer.status, answer.text());
        let problem = answer.json();
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(named), "{named}: {problem}");
    }
    assert_eq!(server.get("/v1/jobs").json()["jobs"], json!([]));
    let folders = std::fs::read_dir(server.data().join("jobs")).map_or(0, Iterator::count);
    assert_eq!(folders, 0, "folders of refused jobs are left");
}

#[test]
fn an_archive_that_grows_beyond_the_disk_is_refused() {
    let server = Server::start();
    let bomb = zip_of(&[("zeros", &vec![0; 64 << 20])]);
    assert!(bomb.len() < 1 << 20);
    let job = json!({"limits": {"disk_mib": 32}, "steps": [shell("true")]}).to_string();
    let sent = Form::new().text("job", job.clone()).part("archive", file("bomb.zip", bomb));
    let answer = send(&server, "/v1/jobs", sent);
    answer.expect_problem(413, "file_too_large");
    assert_eq!(answer.json()["field"], "archive");
    let sent = Form::new().text("job", job).part("large", file("large", vec![0; 40 << 20]));
    send(&server, "/v1/jobs", sent).expect_problem(413, "file_too_large");
    assert_eq!(server.get("/v1/jobs").json()["jobs"], json!([]));
}

#[test]
fn invalid_forms_are_refused() {
    let server = Server::start();
    let table = [
        (Form::new().part("x", file("a", "a")), "job"),
        (Form::new().text("job", "{\"colour\": 1}"), "colour"),
        (Form::new().text("job", "{}"), "task"),
        (Form::new().text("steps", "[{\"tool\": \"fly\"}]"), "steps[0].tool"),
        (Form::new().text("task", "a").text("task", "b"), "task"),
        (form(&["true"]).part("x", file("a", "a")).text("task", "late"), "task"),
    ];
    for (sent, field) in table {
        let answer = send(&server, "/v1/jobs", sent);
        answer.expect_problem(422, "invalid_field");
        assert_eq!(answer.json()["field"], field, "{}", answer.text());
    }
    let broken =
        server.request(Method::POST, "/v1/jobs").header("Content-Type", "multipart/form-data; boundary=x");
    server
        .send(broken.body("--x\r\nContent-Disposition: form-data; name=\"job\"\r\n\r\n{"))
        .expect_problem(400, "malformed_form");
    let unbound = server.request(Method::POST, "/v1/jobs").header("Content-Type", "multipart/form-data");
    server.send(unbound.body("x")).expect_problem(400, "malformed_form");
    assert_eq!(server.get("/v1/jobs").json()["jobs"], json!([]));
}

#[test]
fn aborted_upload_leaves_nothing() {
    let server = Server::start();
    let mut connection = e2e::RawConnection::open(server.port);
    let job = json!({"steps": [shell("true")]});
    let body = format!(
        "--x\r\nContent-Disposition: form-data; name=\"job\"\r\n\r\n{job}\r\n\
         --x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n{}",
        "half ".repeat(1000)
    );
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n\
         Content-Length: {}\r\n\r\n",
        body.len() + 1000
    );
    connection.write(head.as_bytes());
    connection.write(body.as_bytes());
    let jobs = || server.get("/v1/jobs").json()["jobs"].as_array().unwrap().len();
    e2e::wait_until("the draft is there", || jobs() == 1);
    drop(connection);
    e2e::wait_until("the draft is gone", || jobs() == 0);
}

#[test]
fn the_files_of_a_draft_can_be_listed_and_read() {
    let server = Server::start();
    let accepted =
        server.post("/v1/jobs", &json!({"start": false, "steps": [shell("cat a/b.txt")]})).expect(202);
    let job = server.job(accepted.json()["job_id"].as_str().unwrap());
    assert_eq!(job.get("files").expect(200).json()["entries"], json!([]));
    job.put_file("a/b.txt", "content").expect(200);
    assert_eq!(job.get_file("a/b.txt").expect(200).text(), "content");
    let listed = job.get("files?depth=3").expect(200).json();
    let paths: Vec<_> =
        listed["entries"].as_array().unwrap().iter().map(|entry| entry["path"].clone()).collect();
    assert_eq!(paths, ["a", "a/b.txt"]);
    job.get_file("a/c.txt").expect_problem(404, "file_not_found");
    job.post("start", &json!({})).expect(202);
    job.wait_for("complete");
}

#[test]
fn concurrent_uploads_fit_the_disk_limit_together() {
    let server = Server::start();
    let body = json!({"start": false, "limits": {"disk_mib": 16}, "steps": [shell("true")]});
    let accepted = server.post("/v1/jobs", &body).expect(202);
    let job = server.job(accepted.json()["job_id"].as_str().unwrap());
    let codes: Vec<u16> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..6)
            .map(|number| {
                let job = &job;
                scope.spawn(move || job.put_file(&format!("file-{number}"), vec![7; 5 << 20]).status)
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == 200).count(), 3, "{codes:?}");
    assert!(codes.iter().all(|code| [200, 413].contains(code)), "{codes:?}");
}
