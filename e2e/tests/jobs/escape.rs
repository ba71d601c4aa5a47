//! Attempts to escape from a job of the real server. They are the same list that every backend is tested with
//! (`crates/sandbox/tests/escape_suite`); here they run as steps, with a job's privileges and environment.

#[path = "../../../crates/sandbox/tests/escape_suite/attempts/mod.rs"]
mod attempts;

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use attempts::{PRELUDE, system_calls};
use e2e::{Server, shell};
use serde_json::{Value, json};

/// Steps that each print the outcome of one attempt.
fn steps(facts: &str) -> Vec<Value> {
    let prelude = format!("{}{facts}{PRELUDE}", system_calls());
    let step = |script: &str| json!({"tool": "python", "code": format!("{prelude}{script}"), "continue_on_error": true});
    attempts::all().iter().map(|attempt| step(attempt.script)).collect()
}

#[test]
fn every_escape_attempt_of_a_job_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let mut witness = std::process::Command::new("sleep").arg("100000").spawn().unwrap();
    let name = format!("caisson-e2e-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let tcp = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    let core_pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let mounts = || {
        fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .lines()
            // Excludes mounts of concurrent tests and of one test's engine.
            .filter(|line| !line.contains(" /tmp/") && !line.contains(" /var/tmp/caisson-docker-"))
            .count()
    };
    let mounted = mounts();
    let server = Server::start();
    let facts = format!(
        "token, witness = {name:?}, {name:?}\noutside, guest = [{}, {}], 1\nsecret, socket_path, state = {:?}, {:?}, {:?}\n\
         abstract_name, port, shared_key, shared_id = {name:?}, {}, 1234567, 1234567\n",
        witness.id(),
        std::process::id(),
        secret.display().to_string(),
        outside.path().join("s").display().to_string(),
        outside.path().display().to_string(),
        tcp.local_addr().unwrap().port(),
    );
    let job = server.schedule_steps(&steps(&facts));
    let mut events = job.follow();
    events.until_end();
    let mut faults = Vec::new();
    for (index, attempt) in attempts::all().iter().enumerate() {
        let said = events.output(&format!("step-{}.1", index + 1), "stdout");
        let words: Vec<&str> = said.split_whitespace().collect();
        if words.is_empty() || words.iter().any(|word| !attempt.refusals.contains(word)) {
            faults.push(format!(
                "{}: {words:?} {}",
                attempt.name,
                events.output(&format!("step-{}.1", index + 1), "stderr")
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(witness.try_wait().unwrap().is_none(), "a process outside was ended");
    witness.kill().unwrap();
    witness.wait().unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), core_pattern);
    assert!(listener.accept().is_err() && tcp.accept().is_err(), "somebody came");
    assert_eq!(mounts(), mounted);
    server.assert_nothing_left();
}

#[test]
fn host_secrets_and_home_folders_are_not_visible_inside() {
    let server = Server::start();
    let look = "for path in /etc/shadow /root /home /var/lib /opt /srv /mnt /boot /etc/ssh; do \
        [ -r $path ] && ls -A $path 2>/dev/null | sed \"s|^|$path: |\"; done; true";
    let job = server
        .schedule_steps(&[shell(look), shell("ls / /etc; cat /etc/passwd; ls /proc | grep -c '^[0-9]'")]);
    let mut events = job.follow();
    events.until_end();
    let seen = events.output("step-1.1", "stdout");
    assert!(!seen.contains("shadow") && !seen.contains(".ssh"), "{seen}");
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let job = server.schedule_steps(&[shell("hostname 2>/dev/null || cat /proc/sys/kernel/hostname")]);
    let mut events = job.follow();
    events.until_end();
    assert_ne!(events.output("step-1.1", "stdout"), hostname);
}
