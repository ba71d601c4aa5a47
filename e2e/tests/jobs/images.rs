//! Jobs on images: selected by name, small ones, broken ones, and everything in the default one.

use std::fs;
use std::path::PathBuf;

use e2e::images::{add_small, default_images};
use e2e::{Options, Server, shell, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix("caisson-e2e-images-").tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

fn server_with(images: PathBuf) -> Server {
    Server::start_with(Options { images: Some(images), ..Options::default() })
}

#[test]
fn unknown_image_is_refused_with_the_available_ones() {
    let (_folder, images) = folder();
    add_small(&images, "small");
    let server = server_with(images);
    for (path, body) in [
        ("/schedule", json!({"steps": [shell("true")], "image": "nonsense"})),
        ("/v1/sandboxes", json!({"image": "nonsense"})),
        ("/schedule", json!({"steps": [shell("true")], "image": "../../etc"})),
    ] {
        let refusal = server.post(path, &body).expect(422).json();
        assert_eq!(
            (&refusal["code"], &refusal["field"]),
            (&json!("invalid_field"), &json!("image")),
            "{refusal}"
        );
        assert!(refusal["detail"].as_str().unwrap().contains("available: host, small"), "{refusal}");
    }
    let refusal =
        server.post("/schedule", &json!({"steps": [shell("true")], "image": "default"})).expect(422).json();
    assert!(refusal["detail"].as_str().unwrap().contains("caisson image build"), "{refusal}");
}

#[test]
fn without_the_default_image_the_host_is_used_with_a_warning() {
    let server = Server::start();
    let accepted = server.post("/schedule", &json!({"steps": [shell("true")]})).expect(202).json();
    assert!(accepted["hint"].as_str().unwrap().contains("caisson image build"), "{accepted}");
    server.job(accepted["job_id"].as_str().unwrap()).wait_for("complete");
    let asked =
        server.post("/schedule", &json!({"steps": [shell("true")], "image": "host"})).expect(202).json();
    assert_eq!(asked["hint"], Value::Null, "{asked}");
}

#[test]
fn minimal_image_gets_the_missing_user_home_and_files() {
    let (_folder, images) = folder();
    add_small(&images, "small");
    let root = images.join("small/rootfs");
    let before: Vec<_> = fs::read_dir(root.join("etc")).unwrap().map(|e| e.unwrap().file_name()).collect();
    let server = server_with(images.clone());
    let steps = [
        "whoami; id; echo $HOME $SHELL; stat -c '%U %a' /home/agent /tmp",
        "echo mine > ~/file; echo tmp > /tmp/file; cat ~/file /tmp/file > both.txt",
        "grep localhost /etc/hosts; grep -c BEGIN /etc/ssl/certs/ca-certificates.crt",
        "touch /bin/x 2>/dev/null && exit 1; touch /etc/x 2>/dev/null && exit 1; true",
    ];
    let job = server.schedule(&json!({"image": "small", "steps": steps.map(shell)}));
    job.wait_for("complete");
    let log = job.get("log").expect(200).text();
    for expected in
        [" | agent\n", "uid=1000(agent) gid=1000(agent)", "/home/agent /bin/sh", "agent 755", "root 1777"]
    {
        assert!(log.contains(expected), "no `{expected}` in:\n{log}");
    }
    assert_eq!(job.output().text("both.txt"), "mine\ntmp\n");
    let after: Vec<_> = fs::read_dir(root.join("etc")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(before, after, "the image stays as it is");
}

#[test]
fn broken_image_fails_the_job_with_a_clear_error() {
    let (_folder, images) = folder();
    fs::create_dir_all(images.join("empty/rootfs/etc")).unwrap();
    let no_libc = images.join("no-libc/rootfs/bin");
    fs::create_dir_all(&no_libc).unwrap();
    // The host's shell without the libraries that it needs.
    fs::copy("/bin/sh", no_libc.join("sh")).unwrap();
    let server = server_with(images.clone());
    let run = |image: &str| server.schedule(&json!({"image": image, "steps": [shell("echo never")]}));
    let reason = |status: &Value| status["reason"].as_str().unwrap().to_owned();
    let status = run("empty").wait_for_failure("step_failed");
    assert!(reason(&status).contains("this image has no shell"), "{status}");
    let status = run("no-libc").wait_for_failure("step_failed");
    assert!(reason(&status).contains("/bin/sh") && reason(&status).contains("loader"), "{status}");
    // An image that disappears between submission and start.
    add_small(&images, "fleeting");
    let job = server.schedule(&json!({"image": "fleeting", "start": false, "steps": [shell("true")]}));
    fs::remove_dir_all(images.join("fleeting")).unwrap();
    job.post("start", &json!({})).expect(202);
    let status = job.wait_for_failure("image_not_found");
    assert!(reason(&status).contains("fleeting"), "{status}");
}

#[test]
fn pool_switches_to_the_default_image_once_built() {
    let (_folder, images) = folder();
    let config = "[pool]\nsize = 1\n".to_owned();
    let server = Server::start_with(Options { config, images: Some(images.clone()), ..Options::default() });
    wait_until("the pool is full", || server.launchers().len() == 1);
    let first = server.launchers();
    add_small(&images, "default");
    let job = server.schedule_steps(&[shell("cat /etc/os-release > system.txt")]);
    job.wait_for("complete");
    assert_eq!(job.output().text("system.txt"), "PRETTY_NAME=\"Small\"\n");
    wait_until("one of the new image stands ready", || {
        let now = server.launchers();
        now.len() == 1 && now != first && server.count_frozen() == 1
    });
    let pool = server.launchers();
    let job = server.schedule_steps(&[shell("cat /etc/os-release > system.txt")]);
    let asked = job.follow().until("sandbox_requested", |event| event.is("sandbox_requested"));
    assert!(pool[0].contains(asked.data()["sandbox"].as_str().unwrap()), "{pool:?}");
    job.wait_for("complete");
    assert_eq!(job.output().text("system.txt"), "PRETTY_NAME=\"Small\"\n");
    server.stop();
    server.assert_nothing_left();
}

#[test]
fn configured_default_image_is_used_for_jobs_without_one() {
    let (_folder, images) = folder();
    add_small(&images, "small");
    let config = "[jobs]\nimage = \"small\"\n".to_owned();
    let server = Server::start_with(Options { config, images: Some(images), ..Options::default() });
    let job = server.schedule_steps(&[shell("cat /etc/os-release > system.txt")]);
    job.wait_for("complete");
    assert_eq!(job.output().text("system.txt"), "PRETTY_NAME=\"Small\"\n");
}

#[test]
fn default_image_has_everything_an_agent_needs() {
    let server = server_with(default_images());
    let programs = [
        "python3 python pip node npm tsc deno git gcc g++ make rg jq curl sqlite3 xterm icewm pcmanfm Xvnc chromium",
        "xdotool scrot hsetroot xwininfo ip ps unzip zip vim nano tmux gh",
    ];
    let lines = [
        format!("for p in {}; do command -v $p >/dev/null || {{ echo missing: $p; exit 1; }}; done", programs.join(" ")),
        "grep -q 'ID=debian' /etc/os-release && grep -q 'VERSION_CODENAME=trixie' /etc/os-release".to_owned(),
        "id; test \"$(whoami)\" = agent && test \"$HOME\" = /home/agent && touch ~/here".to_owned(),
        "python3 -m venv /tmp/venv && /tmp/venv/bin/pip --version".to_owned(),
        "python3 -c 'import tkinter, numpy, pandas, matplotlib, sqlite3; print(numpy.__version__)'".to_owned(),
        "/opt/jupyter/bin/jupyter kernelspec list --json | jq -e '.kernelspecs | has(\"python3\") and has(\"deno\")'".to_owned(),
        "/opt/jupyter/bin/jupyter lab --version".to_owned(),
        "echo 'const n: number = 6; console.log(n * 7)' > a.ts && tsc a.ts && test \"$(node a.js)\" = 42 && test \"$(deno run a.ts)\" = 42".to_owned(),
        "for c in 4e2d 1f600 e9; do test -n \"$(fc-list :charset=$c)\" || { echo no font for $c; exit 1; }; done".to_owned(),
        "echo 'int main(){return 0;}' > a.c && gcc a.c -o a.out && ./a.out".to_owned(),
        "chromium --headless --dump-dom 'data:text/html,<p>it works</p>' 2>chromium.log | grep -q 'it works'".to_owned(),
        "wc -l < /usr/share/caisson/packages.txt; ! grep -rqs caisson-build /etc /usr/share/caisson".to_owned(),
    ];
    let steps: Vec<Value> = lines.iter().map(|line| shell(line)).collect();
    let job = server.schedule(&json!({"steps": steps, "limits": {"wall_clock_s": 600}}));
    let status = job.wait();
    assert_eq!(status["status"], "complete", "{status:#}\n{}", job.get("log").text());
}
