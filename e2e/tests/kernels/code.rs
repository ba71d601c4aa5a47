//! `python` and `typescript` steps in live kernels: variables, images, exceptions, crashes, endless cells, large
//! output, and a server that is killed during a cell.

use e2e::{Event, Sandbox};
use serde_json::{Value, json};

use crate::server;

fn python(code: &str) -> Value {
    json!({"tool": "python", "code": code})
}

fn cell(sandbox: &Sandbox<'_>, body: &Value) -> Value {
    sandbox.post("code", body).expect(200).json()
}

fn run(sandbox: &Sandbox<'_>, code: &str) -> Value {
    cell(sandbox, &json!({"code": code}))
}

/// Asserts that the note of a cell says why its connection was refused.
#[track_caller]
fn assert_explains_refusal(cell: &Value) {
    let note = cell["note"].as_str().unwrap_or_default();
    assert!(note.contains("refused.example:443") && note.contains("(not_in_packages)"), "{cell:#}");
}

#[test]
fn variables_persist_between_steps_and_cells_are_saved_as_a_notebook() {
    let server = server();
    let plot = "import matplotlib\nmatplotlib.use('module://matplotlib_inline.backend_inline')\n\
        import matplotlib.pyplot as plt\nplt.plot([x, 2])\nplt.show()";
    let steps = [
        python("x = 41"),
        json!({"tool": "python", "code": "print('x is', x + 1)", "expect": {"stdout_contains": "x is 42"}}),
        python("{'answer': x + 1}"),
        python(plot),
        json!({"tool": "python", "code": "raise ValueError('no')", "expect": {"exit_code": 1}}),
        json!({"tool": "code", "kernel": "python3", "code": "print(x)"}),
    ];
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    job.wait_for("complete");
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.output("step-6.1", "stdout"), "41\n");
    let shown: Vec<&Event> = events.events.iter().filter(|event| event.is("call_display")).collect();
    assert_eq!(shown[0].data()["text"], "{'answer': 42}", "{}", events.summary());
    let picture = shown.iter().find_map(|event| event.data()["data"]["image/png"].as_str());
    assert!(picture.is_some_and(|png| png.starts_with("iVBORw0KGgo")), "{}", events.summary());
    let notebook = job.download("agent.ipynb").json();
    assert_eq!((&notebook["nbformat"], &notebook["nbformat_minor"]), (&json!(4), &json!(5)));
    let cells = notebook["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 6, "{notebook:#}");
    assert_eq!(cells[1]["outputs"][0]["text"], "x is 42\n");
    assert!(cells[3]["outputs"].to_string().contains("image/png"));
    assert_eq!(cells[4]["outputs"][0]["ename"], "ValueError");
    assert_eq!(notebook["metadata"]["kernelspec"]["name"], "python3");
}

#[test]
fn an_exception_fails_the_step_with_its_traceback() {
    let server = server();
    let steps = [python("def f():\n    return 1 / 0\nf()"), python("print('never')")];
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    let status = job.wait_for_failure("step_failed");
    assert!(status["reason"].as_str().unwrap().contains("ZeroDivisionError"), "{status:#}");
    assert_eq!(status["steps"][0]["code"], "exception", "{status:#}");
    let mut events = job.follow();
    events.until_end();
    let error = events.events.iter().find(|event| event.is("call_display")).unwrap();
    let text = error.data()["text"].as_str().unwrap();
    assert!(text.contains("in f()") && !text.contains('\u{1b}'), "{text}");
    assert!(error.data()["error"]["traceback"].to_string().contains("\\u001b["), "colours are kept raw");
}

#[test]
fn typescript_kernel_supports_types_variables_and_top_level_await() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    let run = |code: &str| cell(&sandbox, &json!({"code": code, "language": "typescript"}));
    let first = run("interface Point { x: number }\nlet p: Point = { x: await Promise.resolve(20) };\n\
        console.log('made', p.x);\np.x * 2");
    assert_eq!((&first["status"], &first["stdout"]), (&json!("succeeded"), &json!("made 20\n")), "{first:#}");
    assert_eq!(first["displays"][0]["text"], "40", "{first:#}");
    let second = run("p.x + 1");
    assert_eq!(second["displays"][0]["text"], "21", "{second:#}");
    let raised = run("throw new TypeError('no')");
    assert_eq!(
        (&raised["code"], &raised["reason"]),
        (&json!("exception"), &json!("TypeError: no")),
        "{raised:#}"
    );
    let named = cell(&sandbox, &json!({"code": "p.x + 2", "kernel": "typescript"}));
    assert_eq!(named["displays"][0]["text"], "22", "{named:#}");
    let python = cell(&sandbox, &json!({"code": "print(6 * 7)", "kernel": "python"}));
    assert_eq!(python["stdout"], "42\n", "{python:#}");
    let refused = run("await fetch('https://refused.example/').then(answer => answer.text())");
    assert_explains_refusal(&refused);
    assert!(run("1")["note"].is_null(), "it is told once");
    let kernels = sandbox.get("kernels").expect(200).json();
    assert!(kernels.to_string().contains("\"typescript\""), "{kernels}");
    let unknown = sandbox.post("code", &json!({"code": "1", "kernel": "cobol"}));
    let message = unknown.expect_problem(422, "invalid_field");
    assert!(message.contains("`cobol`") && message.contains("python3 (python)"), "{message}");
}

#[test]
fn endless_cell_is_interrupted_and_the_kernel_survives() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    // A kernel may start slowly; this test is not about that.
    run(&sandbox, "kept = 7");
    assert_explains_refusal(&run(
        &sandbox,
        "import urllib.request\nurllib.request.urlopen('https://refused.example/')",
    ));
    let endless = cell(&sandbox, &json!({"code": "while True: pass", "timeout_s": 2}));
    assert_eq!((&endless["status"], &endless["code"]), (&json!("failed"), &json!("timeout")), "{endless:#}");
    assert!(endless["note"].as_str().unwrap().contains("keeps its variables"), "{endless:#}");
    assert_eq!(run(&sandbox, "kept")["displays"][0]["text"], "7");
    let stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass";
    let stubborn = cell(&sandbox, &json!({"code": stubborn, "timeout_s": 2}));
    assert_eq!(stubborn["code"], "timeout", "{stubborn:#}");
    assert!(stubborn["note"].as_str().unwrap().contains("variables are lost"), "{stubborn:#}");
    assert_eq!(run(&sandbox, "kept")["reason"], "NameError: name 'kept' is not defined");
}

#[test]
fn crashed_kernel_is_reported_and_restarted() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    run(&sandbox, "gone = 1");
    let died = run(&sandbox, "import os\nos.kill(os.getpid(), 9)");
    assert_eq!((&died["status"], &died["code"]), (&json!("failed"), &json!("kernel_died")), "{died:#}");
    assert!(died["reason"].as_str().unwrap().contains("signal 9"), "{died:#}");
    let after = run(&sandbox, "'gone' in globals()");
    assert_eq!(after["displays"][0]["text"], "False", "{after:#}");
    assert!(after["note"].as_str().unwrap().contains("was restarted"), "{after:#}");
    assert!(run(&sandbox, "1")["note"].is_null());
    sandbox.post("kernels/python3/restart", &json!({})).expect(204);
    assert!(run(&sandbox, "1")["note"].as_str().unwrap().contains("restarted on request"));
    sandbox.post("kernels/nothing/restart", &json!({})).expect_problem(409, "kernel_not_running");
}

#[test]
fn code_that_exits_its_kernel_does_not_affect_later_cells() {
    let server = server();
    let text =
        |code: &str| json!({"tool": "python", "code": code, "expect": {"stdout_contains": "still here"}});
    let mut steps = vec![python("gone = 1"), python("exit()")];
    steps.extend(["print('still here')"; 3].map(text));
    steps.extend([python("quit()"), text("print('still here', 'gone' in globals())")]);
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    let status = job.wait_for("complete");
    let note = |index: usize| status["steps"][index]["note"].as_str().unwrap_or_default();
    assert!(note(1).contains("exit()"), "{status:#}");
    assert!(note(2).contains("was restarted") && note(2).contains("exit()"), "{status:#}");
    assert_eq!((note(3), note(4)), ("", ""), "{status:#}");
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.output("step-7.1", "stdout"), "still here False\n", "{}", events.summary());
}

#[test]
fn cell_can_be_interrupted_and_updated_displays_are_one_output() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    run(&sandbox, "kept = 7");
    let waiting = std::thread::scope(|scope| {
        let cell = scope
            .spawn(|| run(&sandbox, "import time\nopen('begun', 'w').close()\nwhile True: time.sleep(0.05)"));
        let begun = sandbox.exec("until [ -e begun ]; do sleep 0.05; done");
        assert_eq!(begun["exit_code"], 0, "{begun}");
        sandbox.post("kernels/python3/interrupt", &json!({})).expect(204);
        cell.join().unwrap()
    });
    assert_eq!(
        (&waiting["status"], &waiting["code"]),
        (&json!("failed"), &json!("exception")),
        "{waiting:#}"
    );
    assert!(waiting["reason"].as_str().unwrap().contains("KeyboardInterrupt"), "{waiting:#}");
    assert_eq!(run(&sandbox, "kept")["displays"][0]["text"], "7");
    let bars = "from IPython.display import display\nfor n in range(30):\n    bar = display('0 %', display_id=True)\n\
        \x20   bar.update('100 %')";
    assert_eq!(run(&sandbox, bars)["status"], "succeeded");
    let notebook = sandbox.exec("cat .caisson/agent.ipynb")["stdout"].as_str().unwrap().to_owned();
    let notebook: Value = serde_json::from_str(&notebook).unwrap();
    let outputs = notebook["cells"].as_array().unwrap().last().unwrap()["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 30);
    assert!(outputs.iter().all(|output| output["data"]["text/plain"] == "'100 %'"), "{outputs:?}");
}

#[test]
fn two_hundred_megabytes_of_cell_output_are_truncated() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    for code in ["for _ in range(2000): print('x' * 100_000)", "print('y' * 200_000_000)"] {
        let answer = run(&sandbox, code);
        assert_eq!((&answer["status"], &answer["truncated"]), (&json!("succeeded"), &json!(true)), "{code}");
        assert_eq!(answer["stdout"].as_str().unwrap().len(), 1024 * 1024);
    }
    let notebook =
        sandbox.exec("stat -c %s .caisson/agent.ipynb")["stdout"].as_str().unwrap().trim().to_owned();
    assert!(notebook.parse::<u64>().unwrap() < 20 * 1024 * 1024, "{notebook}");
    let disk_use = std::process::Command::new("du")
        .args(["--summarize", "--total", "--block-size=1"])
        .args(["jobs", "caisson.db", "caisson.db-wal"].map(|name| server.data().join(name)))
        .output()
        .unwrap();
    let listed = String::from_utf8(disk_use.stdout).unwrap();
    let kept: u64 = listed.lines().last().unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!(kept < 64 * 1024 * 1024, "400 MB were printed, and this is kept:\n{listed}");
}

#[test]
fn cell_survives_a_killed_server() {
    let server = server();
    let code = "import time\ncount = globals().get('count', 0) + 1\nprint('begun', flush=True)\n\
        while not __import__('os').path.exists('go'): time.sleep(0.05)\nprint('done', count)";
    let steps = [python(code), json!({"tool": "python", "code": "print('count is', count)"})];
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    let mut events = job.follow();
    events.until("the cell has begun", |event| event.is("call_output"));
    server.kill9();
    server.restart();
    job.post("exec", &json!({"command": "touch go"})).expect(200);
    job.wait_for("complete");
    let mut replay = job.follow();
    replay.until_end();
    assert_eq!(replay.output("step-1.1", "stdout"), "begun\ndone 1\n", "{}", replay.summary());
    assert_eq!(replay.output("step-2.1", "stdout"), "count is 1\n", "{}", replay.summary());
}

#[test]
fn without_kernels_python_runs_in_a_new_process_and_typescript_fails_with_a_hint() {
    let server = server();
    let steps = [
        python("print('fresh')"),
        json!({"tool": "typescript", "code": "1", "continue_on_error": true}),
        json!({"tool": "code", "kernel": "nope", "code": "1", "continue_on_error": true}),
    ];
    let job = server.schedule(&json!({"image": "host", "steps": steps}));
    let status = job.wait_for("complete");
    assert!(
        status["steps"][1]["reason"].as_str().unwrap().contains("no notebook kernel for typescript"),
        "{status:#}"
    );
    assert!(status["steps"][2]["reason"].as_str().unwrap().contains("no kernel called `nope`"), "{status:#}");
    let mut events = job.follow();
    events.until_end();
    let ended = events.events.iter().find(|event| event.is("call_ended")).unwrap();
    assert!(ended.data()["note"].as_str().unwrap().contains("fresh process"), "{}", events.summary());
}

#[test]
fn invalid_cell_requests_are_refused_and_named() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "host"}));
    let refused = |body: &Value| sandbox.post("code", body).expect_problem(422, "invalid_field");
    assert!(refused(&json!({"code": " "})).contains("empty"));
    assert!(refused(&json!({"code": "1", "language": "cobol"})).contains("cobol"));
    assert!(refused(&json!({"code": "1", "language": "python", "kernel": "python3"})).contains("not both"));
    assert!(refused(&json!({"code": "1", "kernel": "../x"})).contains("letters"));
    assert!(refused(&json!({"code": "1", "timeout_s": -1})).contains("-1"));
    let unknown = sandbox.post("code", &json!({"code": "1", "kernel": "nothing"}));
    assert!(unknown.expect_problem(422, "invalid_field").contains("no kernel called `nothing`"));
    assert_eq!(unknown.json()["field"], "kernel");
}
