//! Errors when the engine, an image or a runtime is missing.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use e2e::{Engine, Options, Server, binary, shell};
use serde_json::json;

/// A user without privileges.
const NOBODY: u32 = 65534;

/// Runs `caisson doctor` with this configuration; returns its output and exit code.
fn doctor(config: &str) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("caisson.toml");
    std::fs::write(&file, config).unwrap();
    let output = Command::new(binary())
        .args(["doctor", "--config"])
        .arg(&file)
        .arg("--data")
        .arg(folder.path().join("data"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (text.into_owned(), output.status.code())
}

#[test]
fn doctor_distinguishes_missing_and_usable_engines() {
    let (text, code) =
        doctor("[backend]\nkind = \"docker\"\n[docker]\nhost = \"unix:///nowhere/docker.sock\"\n");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no Docker engine at unix:///nowhere/docker.sock"), "{text}");
    assert!(text.contains("docker.io"), "no remedy: {text}");
    let engine = Engine::get();
    let good = format!("[backend]\nkind = \"docker\"\n[docker]\nhost = \"unix://{}\"\n", engine.socket());
    let (text, code) = doctor(&good);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Docker engine") && text.contains("caisson/agent"), "{text}");
    let (text, code) = doctor(&format!("{good}runtime = \"runsc\"\nimage = \"caisson/missing\"\n"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no runtime `runsc`") && text.contains("no caisson/missing"), "{text}");
}

/// Copies the binary to a place where every user can execute it, even if the repository is not accessible.
fn for_everybody(folder: &std::path::Path) -> std::path::PathBuf {
    let copy = folder.join("caisson");
    std::fs::copy(binary(), &copy).unwrap();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

#[test]
fn doctor_and_job_report_missing_permission_for_the_engine_socket() {
    let engine = Engine::get();
    let folder = tempfile::tempdir().unwrap();
    let program = for_everybody(folder.path());
    // A link to the engine's socket in a separate folder, so that no other test is affected by the permissions.
    let socket = folder.path().join("docker.sock");
    std::os::unix::fs::symlink(engine.socket(), &socket).unwrap();
    let allowed = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(allowed & 0o002, 0, "everybody may use this engine: {allowed:o}");
    let config = folder.path().join("caisson.toml");
    let text = format!("[backend]\nkind = \"docker\"\n[docker]\nhost = \"unix://{}\"\n", socket.display());
    std::fs::write(&config, text).unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::chown(&data, Some(NOBODY), Some(NOBODY)).unwrap();
    std::fs::write(folder.path().join("steps.json"), r#"[{"tool":"shell","command":"true"}]"#).unwrap();
    let out = data.to_string_lossy();
    for words in [&["doctor"][..], &["run", "--here", "--steps", "steps.json", "--out", &out]] {
        let mut command = Command::new(&program);
        command.args(words).arg("--config").arg(&config).env("CAISSON_DATA", &data);
        command.current_dir(folder.path()).uid(NOBODY).gid(NOBODY).env("HOME", &data);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words:?}: {said}");
        assert!(said.contains("this user may not access the Docker engine"), "{words:?}: {said}");
        assert!(said.contains("usermod -aG docker"), "{words:?} has no remedy: {said}");
    }
}

#[test]
fn server_without_an_engine_refuses_to_start() {
    let config = "[backend]\nkind = \"docker\"\n[docker]\nhost = \"unix:///nowhere/docker.sock\"\n".into();
    let server = Server::prepare(Options { config, ..Options::default() });
    server.spawn();
    assert_ne!(server.wait().code(), Some(0));
    assert!(server.log().contains("no Docker engine"), "{}", server.log());
}

#[test]
fn job_with_a_missing_or_invalid_image_is_refused_with_a_hint() {
    let engine = Engine::get();
    let server = engine.serve("");
    for image in ["host", "--privileged"] {
        let answer = server.post("/schedule", &json!({"image": image, "steps": [shell("true")]}));
        let text = answer.expect(422).text();
        assert!(text.contains("available: default"), "{image}: {text}");
    }
    let answer = server.post("/schedule", &json!({"image": "caisson/nothing", "steps": [shell("true")]}));
    let text = answer.expect(422).text();
    assert!(text.contains("available: default") && text.contains("pull = true"), "{text}");
    engine.assert_nothing_left(&server);
}
