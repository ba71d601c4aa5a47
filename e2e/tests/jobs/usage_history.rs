//! The recorded resource usage of a sandbox: from the start, also after the end.

use e2e::{Event, Job, Server, shell, wait_until};
use serde_json::{Value, json};

use crate::audit::audit;

fn samples(history: &Value) -> &[Value] {
    history["samples"].as_array().unwrap()
}

/// How often the server looks at each sandbox.
const LOOK_INTERVAL_MS: i64 = 5_000;

/// How long a job that is over was in the states in which its sandbox is looked at.
fn ran_ms(job: &Job<'_>) -> i64 {
    let mut events = job.follow();
    let time = |event: Event| event.json["time_ms"].as_i64().unwrap();
    let start = time(events.until("its sandbox", |event| event.is("sandbox_requested")));
    time(events.until_end()) - start
}

#[test]
fn resource_usage_is_recorded_and_kept_after_the_end() {
    let server = Server::start();
    let short = server.schedule_steps(&[shell("true")]);
    let job = server.schedule(&json!({
        "steps": [shell("head -c 1M /dev/zero > file; until test -e go; do sleep 0.05; done")],
        "limits": {"memory_mib": 256, "cpus": 1.5},
    }));
    short.wait_for("complete");
    let history = || job.get("stats/history").expect(200).json();
    let limits = history()["limits"].clone();
    assert_eq!((&limits["memory_bytes"], &limits["cpus"]), (&json!(256 << 20), &json!(1.5)), "{limits}");
    wait_until("usage is recorded", || !samples(&history()).is_empty());
    server.kill9();
    server.restart();
    let taken = history();
    let [first, ..] = samples(&taken) else { panic!("it was only in memory: {taken}") };
    for figure in ["time_ms", "memory_bytes", "disk_bytes", "processes"] {
        assert!(first[figure].as_u64().unwrap() > 0, "{figure}: {first}");
    }
    assert!(first["cpus"].as_f64().is_some(), "{first}");
    job.touch("go");
    job.wait_for("complete");
    let kept = history();
    assert_eq!(samples(&kept)[0], *first);
    assert!(kept["disk_total_bytes"].as_u64() > first["disk_bytes"].as_u64(), "{kept}");

    let folder = |id: &str| server.data().join("jobs").join(id);
    // A sandbox is recorded from the second look on; on a busy machine even this job may run until then.
    if ran_ms(&short) < LOOK_INTERVAL_MS {
        assert!(!folder(&short.id).join("usage.jsonl").exists());
        assert!(samples(&short.get("stats/history").expect(200).json()).is_empty());
    }
    assert!(folder(&job.id).join("usage.jsonl").is_file());
    let (is_sound, said) = audit(&server, &["verify"]);
    assert!(is_sound, "{said}");
    assert!(!job.output().names().iter().any(|name| name.contains("usage")));

    assert!(matches!(job.delete().status, 200 | 204));
    job.get("stats/history").expect_problem(404, "job_not_found");
    assert!(!folder(&job.id).exists());
}
