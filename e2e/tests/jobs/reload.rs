//! Settings that change while the server runs, and too many concurrent callers.

use e2e::{Options, Server, shell, wait_until};
use model::scripted::{Fault, Script, ScriptedAnswer, ScriptedServer, Times};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::scripted::finish;

fn start(config: &str) -> Server {
    Server::start_with(Options { config: config.to_owned(), ..Options::default() })
}

fn reload(server: &Server, config: &str) {
    std::fs::write(server.folder().join("caisson.toml"), config).unwrap();
    let before = server.log().matches("configuration").count();
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    wait_until("the configuration is read", || server.log().matches("configuration").count() > before);
}

#[test]
fn sighup_reloads_settings_and_names_those_needing_a_restart() {
    let server = start("[jobs]\nmax_running = 1\n[pool]\nsize = 1\n");
    wait_until("the pool is full", || server.launchers().len() == 1);
    let long = server.schedule_steps(&[shell("sleep 1000")]);
    long.follow().until("its step runs", |event| event.is("call_started"));
    let waiting = server.schedule_steps(&[shell("true")]);
    assert_eq!(waiting.status()["status"], "pending");

    reload(
        &server,
        "listen = [\"127.0.0.1:1\"]\n[jobs]\nmax_running = 2\nmax_queued = 0\n[pool]\nsize = 0\n",
    );
    waiting.wait_for("complete");
    let log = server.log();
    assert!(log.contains("jobs.max_running, jobs.max_queued, pool.size"), "{log}");
    wait_until("the pool is empty", || server.launchers().len() == 1);
    server.post("/schedule", &json!({"steps": [shell("true")]})).expect_problem(429, "queue_full");

    reload(&server, "[jobs]\nmax_running = 0\n");
    let log = server.log();
    assert!(log.contains("nothing was changed") && log.contains("jobs.max_running: 0"), "{log}");
    server.post("/schedule", &json!({"steps": [shell("true")]})).expect_problem(429, "queue_full");
    long.cancel();
    long.wait_for("cancelled");
    server.stop();
    server.assert_nothing_left();
}

#[test]
fn the_pool_is_renewed_when_limits_change() {
    let server = start("[pool]\nsize = 1\n");
    wait_until("the pool is full", || server.launchers().len() == 1);
    let before = server.launchers();
    reload(&server, "[pool]\nsize = 1\n[limits]\nmemory_mib = 321\n");
    wait_until("another one stands ready", || {
        let now = server.launchers();
        now.len() == 1 && now != before
    });
    server.stop();
    server.assert_nothing_left();
}

#[test]
fn concurrent_callers_cannot_exceed_the_sandbox_limit() {
    let server = start("[jobs]\nmax_sandboxes = 3\n");
    let codes: Vec<u16> = std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..12).map(|_| scope.spawn(|| server.post("/v1/sandboxes", &json!({})).status)).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 3, "{codes:?}");
    assert!(codes.iter().all(|code| [201, 429].contains(code)), "{codes:?}");
    assert_eq!(server.launchers().len(), 3);
}

#[test]
fn job_with_a_wrong_model_key_continues_after_the_settings_are_fixed() {
    let bad = ScriptedAnswer { times: Times(0), ..ScriptedAnswer::fault(Fault::BadKey) };
    let refusing = ScriptedServer::start_on_thread(Script::of(vec![bad])).unwrap();
    let taking = ScriptedServer::start_on_thread(Script::of(vec![finish()])).unwrap();
    let named =
        |model: &ScriptedServer| format!("[model]\nname = \"http://{}/v1#scripted\"\n", model.address());
    let server = start(&named(&refusing));
    let job = server.schedule(&json!({"task": "finish"}));
    job.follow().until("paused", |event| event.is_state("paused"));
    let status = job.status();
    assert_eq!(status["code"], "model_auth", "{status:#}");
    assert!(status["reason"].as_str().unwrap().contains("`caisson resume`"), "{status:#}");
    let asked = refusing.requests().len();
    reload(&server, &named(&taking));
    job.wait_for("complete");
    assert_eq!((refusing.requests().len(), taking.requests().len()), (asked, 1));
    server.stop();
    server.assert_nothing_left();
}
