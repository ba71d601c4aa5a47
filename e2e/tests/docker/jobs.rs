//! Jobs in containers.

use e2e::{Engine, Event, shell};
use serde_json::json;

#[test]
fn every_step_kind_runs_in_a_container_and_its_files_are_collected() {
    let engine = Engine::get();
    let server = engine.serve("");
    let job = server.schedule_steps(&[
        shell("id -un; id -u; pwd; echo $HOME"),
        json!({"tool": "python", "code": "open('made.txt', 'w').write('by python\\n')"}),
        json!({"tool": "write_file", "path": "deep/file.txt", "content": "written\n"}),
        json!({"tool": "edit_file", "path": "deep/file.txt", "old": "written", "new": "edited"}),
        shell("cat /app/deep/file.txt; touch /etc/x || echo refused"),
    ]);
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert_eq!(events.output("step-1.1", "stdout"), "agent\n1000\n/workspace\n/home/agent\n");
    assert_eq!(events.output("step-5.1", "stdout"), "edited\nrefused\n");
    let mut output = job.output();
    assert_eq!(
        (output.text("made.txt"), output.text("deep/file.txt")),
        ("by python\n".into(), "edited\n".into())
    );
    // With containers there is no live list of touched files, only a difference at the end.
    let list = job.get("audit/files").text();
    let begin: serde_json::Value = serde_json::from_str(list.lines().next().unwrap()).unwrap();
    assert_eq!((&begin["event"], &begin["method"]), (&json!("begin"), &json!("difference")), "{list}");
    assert!(list.contains("{\"event\":\"created\",\"path\":\"/workspace/deep/file.txt\"}"), "{list}");
    engine.assert_nothing_left(&server);
}

#[test]
fn image_and_limits_of_a_job_apply_to_its_container() {
    let engine = Engine::get();
    let server = engine.serve("images = { second = \"caisson/agent:other\" }");
    let job = server.schedule(&json!({
        "image": "second",
        "limits": {"memory_mib": 128, "pids": 40, "disk_mib": 64, "cpus": 0.5},
        "steps": [
            shell("dd if=/dev/zero of=big bs=1M count=100; rm big; echo after"),
            {"tool": "shell", "command": "tail /dev/zero", "continue_on_error": true},
            shell("echo still here"),
        ],
    }));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert!(events.output("step-1.1", "stderr").contains("No space left"), "{}", events.summary());
    assert_eq!(events.output("step-3.1", "stdout"), "still here\n");
    engine.assert_nothing_left(&server);
}

#[test]
fn pip_works_in_a_container_and_other_egress_is_refused() {
    let engine = Engine::get();
    let server = engine.serve("");
    let install = "python3 -m pip install --break-system-packages --no-cache-dir --target lib six && \
        PYTHONPATH=lib python3 -c 'import six; print(six.__version__)'";
    let fetch = "curl -sS -m 30 -w '\\nstatus %{http_code}\\n' http://example.org/ 2>&1; \
        curl -sS -m 5 --noproxy '*' http://1.1.1.1/ && echo reached; true";
    let steps = json!([{"tool": "shell", "command": install, "timeout_s": 240}, shell(fetch)]);
    let job = server.schedule(&json!({"steps": steps, "egress": "packages"}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}\n{}", events.output("step-1.1", ""), events.summary());
    let output = events.output("step-2.1", "stdout");
    assert!(output.contains("status 403") && !output.contains("reached"), "{output}");
    let opened = |event: &Event| event.is("egress") && event.data()["event"] == "opened";
    assert!(events.count(opened) > 0, "{}", events.summary());
    let job = server.schedule(&json!({"steps": [shell(fetch)], "egress": "off"}));
    let mut events = job.follow();
    events.until_end();
    assert!(!events.output("step-1.1", "stdout").contains("status 200"), "{}", events.summary());
    engine.assert_nothing_left(&server);
}

#[test]
fn jobs_use_pooled_paused_containers() {
    let engine = Engine::get();
    let config = "[pool]\nsize = 1";
    let server = engine.serve(config);
    let is_paused = || engine.containers(&server).iter().any(|container| container["State"] == "paused");
    e2e::wait_until("a container stands ready", is_paused);
    let job = server.schedule_steps(&[shell("echo from the pool")]);
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    server.stop();
    engine.assert_nothing_left(&server);
}

#[test]
fn local_run_with_docker_leaves_nothing_behind() {
    let engine = Engine::get();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("caisson.toml");
    let text = format!("[backend]\nkind = \"docker\"\n[docker]\nhost = \"unix://{}\"\n", engine.socket());
    std::fs::write(&config, text).unwrap();
    let steps = folder.path().join("steps.json");
    std::fs::write(&steps, r#"{"steps": [{"tool": "shell", "command": "echo ran > out.txt"}]}"#).unwrap();
    let output = std::process::Command::new(e2e::binary())
        .args(["run", "--config"])
        .arg(&config)
        .arg("--steps")
        .arg(&steps)
        .arg("--here")
        .env("CAISSON_DATA", folder.path().join("data"))
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    // The server's name was deleted with its folder; leftover containers are found by the paths of their mounts.
    let all = engine.ask("GET", "/containers/json?all=true").unwrap();
    let ours = |container: &&serde_json::Value| {
        let mounts = container["Mounts"].to_string();
        mounts.contains(&*folder.path().to_string_lossy())
    };
    assert_eq!(all.as_array().unwrap().iter().filter(ours).count(), 0, "{all}");
}
