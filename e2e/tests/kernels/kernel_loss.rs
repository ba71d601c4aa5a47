//! Kernels lost with their sandbox: the next cell fails and names the lost variables, or all cells run again.

use e2e::{Event, Follower, Job, Server, shell};
use serde_json::{Value, json};

use crate::server;

/// The first step runs long enough to get a checkpoint.
const LONG_ENOUGH: &str = "import time\nopen('log.txt', 'a').write('one\\n')\ntime.sleep(2.5)\nx = 41";

fn waiting() -> Value {
    shell("echo begun; until [ -e stop ]; do sleep 0.05; done")
}

fn python(code: &str) -> Value {
    json!({"tool": "python", "code": code})
}

/// Kills the guest while this step waits, and lets the step's second attempt end.
fn lose_sandbox<'a>(server: &Server, job: &Job<'a>, number: usize, before: impl FnOnce()) -> Follower<'a> {
    let output = |attempt: usize| {
        let call = format!("step-{number}.{attempt}");
        move |event: &Event| event.is("call_output") && event.call() == call
    };
    let mut events = job.follow();
    events.until("the waiting step", output(1));
    assert!(events.count(|event| event.is("checkpoint")) > 0, "{}", events.summary());
    before();
    server.newest_sandbox().kill_guest();
    events.until("the waiting step again", output(2));
    job.touch("stop");
    events.until_end();
    events
}

#[test]
fn next_cell_names_the_variables_lost_with_the_sandbox() {
    let server = server();
    let refused = json!({"tool": "python", "code": "print(x)", "continue_on_error": true});
    let steps = [python(LONG_ENOUGH), waiting(), refused, python("print('x' in globals())")];
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    let events = lose_sandbox(&server, &job, 2, || ());
    let status = job.wait_for("complete");
    assert_eq!(status["steps"][0]["attempts"], 1, "{status:#}");
    assert_eq!(status["steps"][2]["code"], "kernel_lost", "{status:#}");
    let reason = status["steps"][2]["reason"].as_str().unwrap();
    assert!(reason.contains("python3") && reason.contains("time, x"), "{reason}");
    assert_eq!(events.output("step-4.1", "stdout"), "False\n", "{}", events.summary());
    let lost = events.events.iter().find(|event| event.is("sandbox_lost")).unwrap();
    assert_eq!(lost.data()["kernels"][0]["variables"], json!(["time", "x"]), "{}", lost.data());
}

#[test]
fn cells_of_lost_kernels_run_again_if_requested() {
    let server = server();
    let typescript = |code: &str| json!({"tool": "typescript", "code": code});
    let steps = [
        python(LONG_ENOUGH),
        typescript("let y: number = 20"),
        waiting(),
        python("print(x + z)"),
        typescript("console.log(y + w)"),
    ];
    let job = server.schedule(&json!({"image": "default", "steps": steps, "on_kernel_loss": "replay"}));
    let events = lose_sandbox(&server, &job, 3, || {
        for (language, code) in [("python", "z = 1"), ("typescript", "const w = 1")] {
            let cell = job.post("code", &json!({"language": language, "code": code})).expect(200).json();
            assert_eq!(cell["status"], "succeeded", "{cell}");
        }
    });
    let status = job.wait_for("complete");
    let attempts: Vec<u64> =
        status["steps"].as_array().unwrap().iter().map(|step| step["attempts"].as_u64().unwrap()).collect();
    // The second step runs again as a step if no checkpoint followed it, and as a cell if one did.
    assert_eq!(attempts, [2, 2, 2, 1, 1], "{status:#}");
    assert_eq!(events.output("step-4.1", "stdout"), "42\n", "{}", events.summary());
    assert_eq!(events.output("step-5.1", "stdout"), "21\n", "{}", events.summary());
    let again = |event: &Event| {
        event.is("call_ended") && event.call().starts_with("api-") && event.call().ends_with(".2")
    };
    assert_eq!(events.count(again), 2, "{}", events.summary());
    assert_eq!(job.output().text("log.txt"), "one\none\n");
}
