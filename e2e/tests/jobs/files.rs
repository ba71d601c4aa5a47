//! A job's files over the API: while it runs, and afterwards.

use e2e::{Job, Server, shell};
use serde_json::json;

/// A job that waits for a file `stop`.
fn waiting_job<'a>(server: &'a Server, first: &str) -> Job<'a> {
    let job = server
        .schedule_steps(&[shell(&format!("{first}; echo ready; until [ -e stop ]; do sleep 0.05; done"))]);
    job.follow().until("the first output", |event| event.is("call_output"));
    job
}

#[test]
fn files_of_a_running_job_can_be_managed() {
    let server = Server::start();
    let job = waiting_job(&server, "mkdir given; echo from inside > given/inside.txt");
    job.put_file("deep/new.bin", vec![0, 159, 146, 150]).expect(200);
    assert_eq!(job.get_file("deep/new.bin").expect(200).body, [0, 159, 146, 150]);
    assert_eq!(job.get_file("given/inside.txt").expect(200).text(), "from inside\n");
    assert_eq!(
        job.exec("stat -c '%s %U' deep/new.bin").json()["stdout"].as_str().unwrap().split(' ').next(),
        Some("4")
    );
    let listing = job.get("files?depth=3").expect(200).json();
    let paths: Vec<&str> =
        listing["entries"].as_array().unwrap().iter().filter_map(|item| item["path"].as_str()).collect();
    assert_eq!(paths, ["deep", "deep/new.bin", "given", "given/inside.txt"]);
    job.post("files/deep/new.bin", &json!({"move_to": "moved.bin"})).expect(200);
    job.get_file("deep/new.bin").expect_problem(404, "file_not_found");
    assert_eq!(job.delete_file("moved.bin").status, 204);
    job.get_file("moved.bin").expect_problem(404, "file_not_found");
    job.delete_file("given").expect_problem(409, "directory_not_empty");
    job.put_file("stop", "");
    job.wait_for("complete");
}

#[test]
fn files_of_an_ended_job_are_read_only_from_its_zip() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("mkdir d; echo x > d/f")]);
    job.wait_for("complete");
    server.assert_nothing_left();
    assert_eq!(job.get_file("d/f").expect(200).text(), "x\n");
    assert!(job.get("files?depth=2").expect(200).text().contains("d/f"));
    job.put_file("d/f", "y").expect_problem(409, "wrong_state");
    job.delete_file("d/f").expect_problem(409, "wrong_state");
}

#[test]
fn html_of_a_job_is_never_served_as_html() {
    let server = Server::start();
    let job = waiting_job(
        &server,
        "echo '<script>fetch(\"/schedule\")</script>' > page.html; cp page.html image.svg",
    );
    for path in ["page.html", "image.svg"] {
        let answer = job.get_file(path).expect(200);
        assert!(
            answer.header("content-disposition").starts_with("attachment"),
            "{path}: {:?}",
            answer.headers
        );
        assert!(answer.header("content-security-policy").contains("sandbox"), "{path}: {:?}", answer.headers);
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    job.put_file("stop", "");
    job.wait_for("complete");
}

#[test]
fn large_file_can_be_uploaded_and_downloaded() {
    let server = Server::start();
    let job = waiting_job(&server, "true");
    let large: Vec<u8> =
        (0..20 * 1024 * 1024_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    job.put_file("large.bin", large.clone()).expect(200);
    assert!(job.get_file("large.bin").expect(200).body == large, "the file came back changed");
    job.put_file("stop", "");
    job.wait_for("complete");
    assert!(job.output().read("large.bin") == large, "the file in the zip is another one");
}
