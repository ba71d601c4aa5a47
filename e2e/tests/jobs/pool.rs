//! The pool of warm sandboxes.

use e2e::images::add_small;
use e2e::{Options, Server, shell, wait_until};
use serde_json::json;

fn server_with_pool() -> Server {
    let config = "[pool]\nsize = 2\n".to_owned();
    let server = Server::start_with(Options { config, ..Options::default() });
    wait_until("the pool is full", || server.launchers().len() == 2);
    server
}

fn is_pooled(pool: &[String], sandbox: &str) -> bool {
    pool.iter().any(|command| command.contains(sandbox))
}

#[test]
fn jobs_and_sandboxes_use_the_pool_and_it_is_refilled() {
    let server = server_with_pool();
    let pool = server.launchers();
    let job = server.schedule_steps(&[shell("echo works > out.txt")]);
    let mut events = job.follow();
    let asked = events.until("sandbox_requested", |event| event.is("sandbox_requested"));
    assert!(is_pooled(&pool, asked.data()["sandbox"].as_str().unwrap()), "{pool:?}");
    events.until_end();
    assert_eq!(job.output().text("out.txt"), "works\n");
    wait_until("the pool is full again", || {
        let now = server.launchers();
        now.len() == 2 && now != pool
    });
    let pool = server.launchers();
    let sandbox = server.create_sandbox(&json!({}));
    let asked = sandbox.follow().until("sandbox_requested", |event| event.is("sandbox_requested"));
    assert!(is_pooled(&pool, asked.data()["sandbox"].as_str().unwrap()), "{pool:?}");
    assert_eq!(sandbox.exec("echo hello")["stdout"], "hello\n");
    sandbox.end().expect(204);
    server.stop();
    server.assert_nothing_left();
}

#[test]
fn job_with_other_limits_gets_a_fresh_sandbox() {
    let server = server_with_pool();
    let pool = server.launchers();
    let job = server.schedule(&json!({"steps": [shell("true")], "limits": {"memory_mib": 200}}));
    let mut events = job.follow();
    let asked = events.until("sandbox_requested", |event| event.is("sandbox_requested"));
    assert!(!is_pooled(&pool, asked.data()["sandbox"].as_str().unwrap()), "{pool:?}");
    events.until_end();
    assert_eq!(job.status()["status"], "complete");
}

#[test]
fn each_pooled_image_has_frozen_sandboxes() {
    let folder = tempfile::Builder::new().prefix("caisson-e2e-images-").tempdir().unwrap();
    let images = folder.path().to_owned();
    add_small(&images, "small");
    let config = "[pool]\nsize = 1\nimages = [\"host\", \"small\", \"absent\"]\n".to_owned();
    let server = Server::start_with(Options { config, images: Some(images.clone()), ..Options::default() });
    wait_until("one of each stands ready", || server.launchers().len() == 2);
    wait_until("both are frozen", || server.count_frozen() == 2);
    assert!(server.log().contains("absent"), "an image that is not there is told");
    let pool = server.launchers();
    for image in ["small", "host"] {
        let job = server.schedule(&json!({"steps": [shell("echo $((6 * 7)) > out.txt")], "image": image}));
        let asked = job.follow().until("sandbox_requested", |event| event.is("sandbox_requested"));
        assert!(is_pooled(&pool, asked.data()["sandbox"].as_str().unwrap()), "{image}: {pool:?}");
        job.wait_for("complete");
        assert_eq!(job.output().text("out.txt"), "42\n");
    }
    wait_until("the pool is full again", || {
        let now = server.launchers();
        now.len() == 2 && !now.iter().any(|command| pool.contains(command))
    });
    // An image with the same name replaces the old one; the pooled sandboxes belong to the old image.
    let pool = server.launchers();
    std::fs::rename(images.join("small"), images.join("old")).unwrap();
    add_small(&images, "small");
    let job = server.schedule(&json!({"steps": [shell("true")], "image": "small"}));
    let asked = job.follow().until("sandbox_requested", |event| event.is("sandbox_requested"));
    assert!(!is_pooled(&pool, asked.data()["sandbox"].as_str().unwrap()), "{pool:?}");
    job.wait_for("complete");
    wait_until("the old one is gone", || {
        let now = server.launchers();
        now.len() == 2 && now.iter().filter(|command| pool.contains(command)).count() == 1
    });
    server.stop();
    server.assert_nothing_left();
}

#[test]
fn more_jobs_than_pooled_sandboxes_all_complete() {
    let server = server_with_pool();
    let jobs: Vec<_> = (0..12).map(|n| server.schedule_steps(&[shell(&format!("echo {n} > n"))])).collect();
    for (n, job) in jobs.iter().enumerate() {
        let status = job.wait_for("complete");
        assert_eq!(status["steps"][0]["attempts"], 1, "{status}");
        assert_eq!(job.output().text("n"), format!("{n}\n"));
    }
    server.stop();
    server.assert_nothing_left();
}

#[test]
fn the_pool_of_a_server_that_crashed_is_removed() {
    let server = server_with_pool();
    let old = server.launchers();
    server.kill9();
    server.restart();
    wait_until("the old pool is gone and a new one stands", || {
        let now = server.launchers();
        now.len() == 2 && !now.iter().any(|command| old.contains(command))
    });
    server.stop();
    server.assert_nothing_left();
}

#[test]
fn crash_while_taking_a_pooled_sandbox_is_recovered() {
    let server = server_with_pool();
    let job = server.schedule_steps(&[shell("echo once >> log")]);
    let mut events = job.follow();
    events.until("sandbox_requested", |event| event.is("sandbox_requested"));
    server.kill9();
    server.restart();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert_eq!(job.output().text("log"), "once\n");
    server.stop();
    server.assert_nothing_left();
}
