//! Limits of a job: each has its own error code, and exceeding one affects no other job.

use e2e::{Follower, Job, Server, shell, wait_until};
use serde_json::{Value, json};

/// A job that counts while another job misbehaves, and must not be affected by it.
struct Neighbour<'a> {
    job: Job<'a>,
}

impl<'a> Neighbour<'a> {
    fn start(server: &'a Server) -> Self {
        let count =
            "echo ready; n=0; until [ -e stop ]; do n=$((n+1)); echo $n > count || exit 1; sleep 0.01; done";
        let job = server.schedule_steps(&[shell(count), shell("cat count")]);
        job.follow().until("the first output", |event| event.is("call_output"));
        Self { job }
    }

    fn count(&self) -> u64 {
        // The file is replaced while it is read; an empty one counts as zero.
        self.job.get_file("count").text().trim().parse().unwrap_or(0)
    }

    /// Asserts that the job still counts, completes, and is on its first attempt.
    fn assert_unharmed(self) {
        let before = self.count();
        wait_until("the neighbour counts on", || self.count() > before);
        self.job.put_file("stop", "");
        let status = self.job.wait_for("complete");
        assert_eq!(status["steps"][0]["attempts"], 1, "{status}");
    }
}

fn run_with_limits<'a>(server: &'a Server, limits: &Value, steps: &[Value]) -> (Job<'a>, Follower<'a>) {
    let job = server.schedule(&json!({"steps": steps, "limits": limits}));
    let mut events = job.follow();
    events.until_end();
    (job, events)
}

fn end_of<'a>(events: &'a Follower<'_>, call: &str) -> &'a Value {
    let mut ends = events.events.iter().filter(|event| event.is("call_ended") && event.call() == call);
    ends.next().unwrap_or_else(|| panic!("{call} has not ended: {}", events.summary())).data()
}

#[test]
fn step_exceeding_memory_fails_as_out_of_memory() {
    let server = Server::start();
    let neighbour = Neighbour::start(&server);
    let eat = shell("echo kept > kept.txt; python3 -c 'x = b\"x\" * (600 << 20)'");
    let (job, events) = run_with_limits(&server, &json!({"memory_mib": 128}), &[eat]);
    job.wait_for_failure("out_of_memory");
    assert_eq!(end_of(&events, "step-1.1")["code"], "out_of_memory", "{}", events.summary());
    assert_eq!(job.output().text("kept.txt"), "kept\n");
    neighbour.assert_unharmed();
    server.assert_nothing_left();
}

#[test]
fn job_continues_with_the_next_step_after_out_of_memory() {
    let server = Server::start();
    let eat = json!({"tool": "python", "code": "x = b'x' * (600 << 20)", "continue_on_error": true});
    let (job, events) = run_with_limits(&server, &json!({"memory_mib": 128}), &[eat, shell("echo on")]);
    job.wait_for("complete");
    assert_eq!(events.output("step-2.1", "stdout"), "on\n");
    assert_eq!(events.count(|event| event.is("sandbox_lost")), 0, "{}", events.summary());
}

#[test]
fn step_is_not_blamed_for_resources_used_by_an_earlier_one() {
    let server = Server::start();
    let steps = [shell("python3 -c 'x = b\"x\" * (600 << 20)'; echo $?"), shell("exit 3")];
    let (job, events) = run_with_limits(&server, &json!({"memory_mib": 128}), &steps);
    job.wait_for_failure("step_failed");
    assert_eq!(events.output("step-1.1", "stdout"), "137\n", "the memory was not used up");
    assert_eq!(end_of(&events, "step-2.1")["code"], "exit_code", "{}", events.summary());
}

#[test]
fn step_filling_the_disk_fails_as_disk_full() {
    let server = Server::start();
    let neighbour = Neighbour::start(&server);
    let fill = shell("echo kept > kept.txt; head -c 200M /dev/zero > large.bin");
    let (job, events) = run_with_limits(&server, &json!({"disk_mib": 32}), &[fill]);
    job.wait_for_failure("disk_full");
    assert_eq!(end_of(&events, "step-1.1")["code"], "disk_full", "{}", events.summary());
    assert_eq!(job.output().text("kept.txt"), "kept\n");
    neighbour.assert_unharmed();
    server.assert_nothing_left();
}

/// Large blocks leave less than one block free, `fallocate` leaves all of the space free, and a program may remove
/// what it has written.
#[test]
fn full_disk_is_detected_however_it_was_filled() {
    let server = Server::start();
    let fillings = [
        shell("dd if=/dev/zero of=large.bin bs=1M"),
        shell("rm large.bin; fallocate -l 1G large.bin"),
        shell("dd if=/dev/zero of=large.bin bs=4M || { rm large.bin; exit 1; }"),
        json!({"tool": "python", "code": "import os\ntry:\n    open('large.bin', 'wb').write(b'x' * (64 << 20))\nfinally:\n    os.remove('large.bin')"}),
    ];
    let steps: Vec<Value> = fillings
        .into_iter()
        .map(|mut step| {
            step["continue_on_error"] = json!(true);
            step
        })
        .collect();
    let (job, events) = run_with_limits(&server, &json!({"disk_mib": 32}), &steps);
    job.wait_for("complete");
    for number in 1..=steps.len() {
        assert_eq!(end_of(&events, &format!("step-{number}.1"))["code"], "disk_full", "{}", events.summary());
    }
}

#[test]
fn step_exhausting_inodes_fails_as_disk_full() {
    let server = Server::start();
    let fill = json!({"tool": "python", "code": "for n in range(10**6): open(f'{n}', 'w').close()"});
    let (job, _) = run_with_limits(&server, &json!({"disk_mib": 16}), &[fill]);
    job.wait_for_failure("disk_full");
}

#[test]
fn every_writable_path_counts_towards_the_disk_limit() {
    let server = Server::start();
    let places = "for place in /tmp /var/tmp \"$HOME\" /workspace; do \
        [ -w $place ] || continue; head -c 60M /dev/zero > $place/large 2>/dev/null && echo $place; rm -f $place/large; done; true";
    let limits = json!({"disk_mib": 32, "memory_mib": 64});
    let (job, events) = run_with_limits(&server, &limits, &[shell(places)]);
    job.wait();
    assert_eq!(events.output("step-1.1", "stdout"), "", "more than the limit could be written there");
}

#[test]
fn ten_thousand_forks_stay_within_the_process_limit() {
    let server = Server::start();
    let neighbour = Neighbour::start(&server);
    let bomb = json!({"tool": "python", "continue_on_error": true, "timeout_s": 60, "code": "import os, time\nmade = 0\nfor n in range(10_000):\n    try:\n        pid = os.fork()\n    except OSError:\n        break\n    if pid == 0:\n        time.sleep(600)\n        os._exit(0)\n    made += 1\nprint(made)"});
    let (job, events) = run_with_limits(&server, &json!({"pids": 64}), &[bomb, shell("echo on")]);
    job.wait_for("complete");
    let made: u64 = events.output("step-1.1", "stdout").trim().parse().unwrap();
    assert!((1..64).contains(&made), "{made} processes were made");
    assert_eq!(events.output("step-2.1", "stdout"), "on\n", "what the first step left was in the way");
    neighbour.assert_unharmed();
    server.assert_nothing_left();
}

#[test]
fn step_that_cannot_fork_fails_as_too_many_processes() {
    let server = Server::start();
    let code =
        "import os, time\nwhile True:\n    if os.fork() == 0:\n        time.sleep(600)\n        os._exit(0)";
    let (job, events) =
        run_with_limits(&server, &json!({"pids": 64}), &[json!({"tool": "python", "code": code})]);
    job.wait_for_failure("too_many_processes");
    assert_eq!(end_of(&events, "step-1.1")["code"], "too_many_processes", "{}", events.summary());
}

#[test]
fn endless_fork_bomb_is_ended_by_its_timeout() {
    let server = Server::start();
    let neighbour = Neighbour::start(&server);
    let bomb =
        json!({"tool": "shell", "command": "bomb() { bomb | bomb & }; bomb; sleep 600", "timeout_s": 2});
    let (job, events) = run_with_limits(&server, &json!({"pids": 128}), &[bomb]);
    job.wait_for("failed");
    let code = end_of(&events, "step-1.1")["code"].as_str().unwrap().to_owned();
    assert!(["timeout", "too_many_processes"].contains(&code.as_str()), "{}", events.summary());
    neighbour.assert_unharmed();
    server.assert_nothing_left();
}

#[test]
fn open_files_are_limited() {
    let server = Server::start();
    let code = "files = []\ntry:\n    while True: files.append(open('/dev/null'))\nexcept OSError as error:\n    print(len(files), error.errno)";
    let (job, events) =
        run_with_limits(&server, &json!({"open_files": 100}), &[json!({"tool": "python", "code": code})]);
    job.wait_for("complete");
    let output = events.output("step-1.1", "stdout");
    let (opened, errno) = output.trim().split_once(' ').unwrap();
    assert_eq!(errno, "24");
    assert!((50..=100).contains(&opened.parse::<u32>().unwrap()), "{output}");
}

#[test]
fn job_cpu_time_is_limited() {
    let server = Server::start();
    let code = "import time\nwall, cpu = time.monotonic(), time.process_time()\nwhile time.monotonic() - wall < 2: pass\nprint((time.process_time() - cpu) / (time.monotonic() - wall))";
    let (job, events) =
        run_with_limits(&server, &json!({"cpus": 0.2}), &[json!({"tool": "python", "code": code})]);
    job.wait_for("complete");
    let share: f64 = events.output("step-1.1", "stdout").trim().parse().unwrap();
    assert!(share < 0.35, "it got {share} of a processor");
}

#[test]
fn job_ends_at_its_deadline_and_keeps_its_output() {
    let server = Server::start();
    let steps = [shell("echo kept > kept.txt; sleep 600")];
    // Enough time for a slow machine to start the step.
    let (job, _) = run_with_limits(&server, &json!({"wall_clock_s": 8}), &steps);
    job.wait_for_failure("deadline");
    assert_eq!(job.output().text("kept.txt"), "kept\n");
    server.assert_nothing_left();
}

#[test]
fn extended_job_continues_after_its_first_deadline_and_across_a_restart() {
    let server = Server::start();
    // The first step ends after the first deadline.
    let steps = [shell("sleep 8.5"), shell("until [ -e go ]; do sleep 0.05; done")];
    let job = server.schedule(&json!({"steps": steps, "limits": {"wall_clock_s": 8}}));
    let mut events = job.follow();
    events.until("the first step", |event| event.is("call_started"));
    let extended = job.post("extend", &json!({"seconds": 592})).expect(200).json();
    assert_eq!(extended["time_limit_s"], 600.0, "{extended}");
    assert!(extended["deadline_at"].is_string(), "{extended}");
    let change = events.until("the new limit", |event| event.is("time_limit_changed"));
    assert_eq!(change.data(), &json!({"before_ms": 8_000, "after_ms": 600_000}));
    events.until("the second step", |event| event.is("call_started") && event.call() == "step-2.1");
    server.kill9();
    server.restart();
    job.touch("go");
    job.wait_for("complete");
    job.post("extend", &json!({"seconds": 60})).expect_problem(409, "wrong_state");
    server.assert_nothing_left();
}

#[test]
fn concurrent_extensions_of_a_waiting_job_add_up() {
    let server = Server::start();
    let limits = json!({"wall_clock_s": 60});
    let job = server.schedule(&json!({"steps": [shell("true")], "limits": limits, "start": false}));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| job.post("extend", &json!({"seconds": 10})).expect(200));
        }
    });
    let extended = job.post("extend", &json!({"seconds": 0.5})).expect(200).json();
    assert_eq!(
        (&extended["time_limit_s"], &extended["deadline_at"]),
        (&json!(100.5), &Value::Null),
        "{extended}"
    );
    for seconds in [json!(0), json!(-1), json!("60"), json!(2_592_000)] {
        let refused = job.post("extend", &json!({ "seconds": seconds }));
        refused.expect_problem(422, "invalid_field");
        assert_eq!(refused.json()["field"], "seconds");
    }
}

#[test]
fn deadline_applies_while_the_server_is_down() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [shell("sleep 600")], "limits": {"wall_clock_s": 2}}));
    // The deadline starts to matter here; however slow the machine is, the job gets this far.
    job.follow().until("its sandbox", |event| event.is_state("running"));
    server.kill9();
    server.restart();
    job.wait_for_failure("deadline");
    server.assert_nothing_left();
}

#[test]
fn gigabyte_of_output_is_truncated_to_head_and_tail_with_counts() {
    let server = Server::start();
    let neighbour = Neighbour::start(&server);
    let print = json!({"tool": "shell", "timeout_s": 240, "command": "echo the-head; yes 0123456789abcde | head -c 1000000000; echo the-tail"});
    let job = server.schedule_steps(&[print]);
    let mut events = job.follow();
    events.until("the end of the call", |event| event.is("call_ended"));
    events.until_end();
    assert_eq!(job.wait()["status"], "complete");
    let end = end_of(&events, "step-1.1");
    assert_eq!(end["output_bytes"], 1_000_000_000 + 9 + 9, "{end}");
    assert_eq!(end["output_lines"], 62_500_000 + 2, "{end}");
    let output = events.output("step-1.1", "stdout");
    assert!(output.starts_with("the-head\n") && output.ends_with("the-tail\n"));
    assert!((16 << 20..=64 << 20).contains(&output.len()), "{} bytes were kept", output.len());
    let dropped: u64 = events
        .events
        .iter()
        .filter_map(|event| event.data()["bytes"].as_u64().filter(|_| event.is("call_output_dropped")))
        .sum();
    assert_eq!(dropped + output.len() as u64, 1_000_000_018);
    neighbour.assert_unharmed();
    server.assert_nothing_left();
}

#[test]
fn step_that_ignores_sigterm_is_killed() {
    let server = Server::start();
    let deaf = "trap '' TERM INT HUP; echo ready; while true; do sleep 0.1; done";
    let (job, events) =
        run_with_limits(&server, &json!({}), &[json!({"tool": "shell", "command": deaf, "timeout_s": 1})]);
    job.wait_for("failed");
    assert_eq!(end_of(&events, "step-1.1")["code"], "timeout");
    server.assert_nothing_left();
}

#[test]
fn background_processes_do_not_delay_a_step_or_outlive_the_job() {
    let server = Server::start();
    let leave =
        "nohup setsid sh -c 'while true; do echo >> ticks; sleep 0.05; done' >/dev/null 2>&1 & echo left";
    let (job, events) = run_with_limits(&server, &json!({}), &[shell(leave), shell("echo next")]);
    job.wait_for("complete");
    assert_eq!(events.output("step-1.1", "stdout"), "left\n");
    assert_eq!(events.output("step-2.1", "stdout"), "next\n");
    server.assert_nothing_left();
}

#[test]
fn a_background_process_that_keeps_the_output_open_does_not_hang_the_job() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "shell", "command": "sleep 600 & echo left", "timeout_s": 20}, shell("echo next")
    ]}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.output("step-2.1", "stdout"), "next\n", "{}", events.summary());
    server.assert_nothing_left();
}

#[test]
fn out_of_range_limit_is_refused_and_named() {
    let server = Server::start();
    for (limits, word) in [
        (json!({"memory_mib": 1}), "limits.memory_mib"),
        (json!({"pids": 0}), "limits.pids"),
        (json!({"cpus": -1}), "limits.cpus"),
        (json!({"wall_clock_s": 0}), "limits.wall_clock_s"),
    ] {
        let answer = server.post("/schedule", &json!({"steps": [shell("true")], "limits": limits}));
        answer.expect_problem(422, "invalid_field");
        assert_eq!(answer.json()["field"], word);
    }
}

#[test]
fn full_queue_answers_429_with_retry_after() {
    let server = Server::start_with(e2e::Options {
        config: "[jobs]\nmax_queued = 3\nmax_running = 1\n".into(),
        ..Default::default()
    });
    let done = server.schedule_steps(&[shell("true")]);
    done.wait_for("complete");
    let blocker = server.schedule_steps(&[shell("echo ready; until [ -e stop ]; do sleep 0.05; done")]);
    blocker.follow().until("the first output", |event| event.is("call_output"));
    let mut waiting = vec![server.schedule_steps(&[shell("true")])];
    // A retry takes a place in the queue like any other job.
    for _ in 0..2 {
        waiting
            .push(server.job(done.post("retry", &json!({})).expect(202).json()["job_id"].as_str().unwrap()));
    }
    done.post("retry", &json!({})).expect_problem(429, "queue_full");
    let refused = server.post("/schedule", &json!({"steps": [shell("true")]}));
    refused.expect_problem(429, "queue_full");
    assert!(refused.header("retry-after").parse::<u64>().is_ok_and(|seconds| seconds > 0));
    blocker.put_file("stop", "");
    for job in waiting {
        job.wait_for("complete");
    }
}

#[test]
fn drafts_count_towards_the_queue_limit() {
    let server =
        Server::start_with(e2e::Options { config: "[jobs]\nmax_queued = 2\n".into(), ..Default::default() });
    let draft = json!({"steps": [shell("cat given")], "start": false});
    let drafts: Vec<_> = (0..2).map(|_| server.schedule(&draft)).collect();
    server.post("/schedule", &draft).expect_problem(429, "queue_full");
    server.post("/schedule", &json!({"steps": [shell("true")]})).expect_problem(429, "queue_full");
    for job in &drafts {
        job.put_file("given", "x").expect(200);
        job.post("start", &json!({})).expect(202);
        job.wait_for("complete");
    }
    server.schedule_steps(&[shell("true")]).wait_for("complete");
}

#[test]
fn job_with_higher_priority_runs_first() {
    let server =
        Server::start_with(e2e::Options { config: "[jobs]\nmax_running = 1\n".into(), ..Default::default() });
    let blocker = server.schedule_steps(&[shell("echo ready; until [ -e stop ]; do sleep 0.05; done")]);
    blocker.follow().until("the first output", |event| event.is("call_output"));
    let low = server.schedule(&json!({"steps": [shell("true")], "priority": -5}));
    let high = server.schedule(&json!({"steps": [shell("true")], "priority": 5}));
    blocker.put_file("stop", "");
    low.wait_for("complete");
    high.wait_for("complete");
    let started = |job: &Job<'_>| {
        let event = job.follow().until("the start", |event| event.is_state("starting"));
        event.json["time_ms"].as_i64().unwrap()
    };
    assert!(started(&high) <= started(&low), "{} {}", started(&high), started(&low));
}

#[test]
fn many_concurrent_jobs_all_complete() {
    let server = Server::start();
    let jobs: Vec<_> = (0..60).map(|n| server.schedule_steps(&[shell(&format!("echo {n} > n"))])).collect();
    for (n, job) in jobs.iter().enumerate() {
        job.wait_for("complete");
        assert_eq!(job.output().text("n"), format!("{n}\n"));
    }
    server.assert_nothing_left();
}
