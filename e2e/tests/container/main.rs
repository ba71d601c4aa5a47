//! The binary in a real Docker container with Docker's defaults, which allow no namespaces: as root and as an
//! ordinary user, and with published ports. Each test starts its own engine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod engine;
mod published_ports;

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::engine::{Engine, USER, said};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Asserts that doctor reports the limitation, that a job which requires namespaces fails with a hint how to accept
/// Landlock only, and that a job which accepts it runs.
fn assert_landlock_is_suggested(user: u32) {
    let engine = Engine::start();
    let doctor = engine.caisson(user, &["doctor", "--json"]);
    assert!(doctor.status.success(), "{}", said(&doctor));
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert_eq!(doctor["isolation"], "landlock");
    let check = |name: &str| {
        let checks = doctor["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {doctor}"))
    };
    assert_eq!(check("namespaces")["state"], "weaker");
    let remedy = check("namespaces")["remedy"].as_str().unwrap();
    assert!(remedy.contains("seccomp.json") && remedy.contains("--cap-add SYS_ADMIN"), "{remedy}");
    assert_eq!(check("Landlock alone")["state"], "good");
    let enforced = doctor["enforced"].as_array().unwrap();
    assert_eq!(enforced.contains(&json!("pids")), user == 0, "{doctor}");
    assert!(!enforced.contains(&json!("memory")) && !enforced.contains(&json!("disk")), "{doctor}");

    engine.write_steps(
        "cd $CAISSON_WORKSPACE && echo made > file && cat file && setsid sleep 1000 & \
         cat /proc/1/environ || ls /var/lib/caisson || ls $HOME/.. > /dev/null && echo refused",
    );
    let refused = engine.caisson(user, &["run", "--steps", "/given/steps.json"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("--isolation landlock"), "{}", said(&refused));
    assert!(said(&refused).contains("does not allow namespaces"), "{}", said(&refused));

    // A request for a bare sandbox gets the same hint, with and without a server.
    for (words, code) in [("shell --here", 125), ("sandboxes create", 2)] {
        let refused = engine.caisson_with_server(user, words);
        assert_eq!(refused.status.code(), Some(code), "{words}: {}", said(&refused));
        let text = said(&refused);
        assert!(text.contains("cannot create the sandbox: ") && text.contains("landlock"), "{words}: {text}");
    }

    let ran = engine.caisson(user, &["run", "--isolation", "landlock", "--steps", "/given/steps.json"]);
    let text = said(&ran);
    assert_eq!(ran.status.code(), Some(0), "{text}");
    assert!(
        text.contains("made") && text.contains("refused") && text.contains("Permission denied"),
        "{text}"
    );
    // The operator may accept it for all jobs.
    let setting = "[sandbox]\nisolation = \"landlock\"\n";
    fs::write(engine.folder.path().join("work/caisson.toml"), setting).unwrap();
    let words = ["run", "--config", "/given/caisson.toml", "--steps", "/given/steps.json"];
    let accepted = engine.caisson(user, &words);
    assert_eq!(accepted.status.code(), Some(0), "{}", said(&accepted));
}

#[test]
fn compose_container_has_fully_isolated_sandboxes() {
    let engine = Engine::start();
    let doctor = engine.caisson_in_compose_container(&["doctor", "--json"]);
    assert!(doctor.status.success(), "{}", said(&doctor));
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert_eq!(doctor["isolation"], "namespaces", "{doctor:#}");
    let enforced = doctor["enforced"].as_array().unwrap();
    for limit in ["memory", "cpu", "pids"] {
        assert!(enforced.contains(&json!(limit)), "{limit} is not enforced: {doctor:#}");
    }
    engine.write_steps("id -un && pwd && echo made > file && cat file");
    let ran = engine.caisson_in_compose_container(&["run", "--here", "--steps", "/given/steps.json"]);
    let text = said(&ran);
    assert_eq!(ran.status.code(), Some(0), "{text}");
    assert!(text.contains("agent") && text.contains("/workspace") && text.contains("complete"), "{text}");
}

#[test]
fn default_container_suggests_landlock_to_root() {
    assert_landlock_is_suggested(0);
}

#[test]
fn default_container_suggests_landlock_to_an_ordinary_user() {
    assert_landlock_is_suggested(USER);
}
