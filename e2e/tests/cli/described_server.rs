//! `image list`, `doctor` and `config check` describe the server that answers, not another data folder.

use std::path::Path;

use e2e::images::add_small;
use e2e::{Options, Server};
use serde_json::json;

use crate::cli_command::{Outcome, command, finish};

/// An address where no server answers.
const NO_SERVER: &str = "http://127.0.0.1:1";

/// Runs a command in a folder of its own, with this server URL in the environment.
fn ask(folder: &Path, url: &str, words: &[&str]) -> Outcome {
    let mut command = command(folder, words);
    command.env("CAISSON_URL", url);
    finish(command, "")
}

#[test]
fn commands_about_the_host_describe_the_server_that_answers() {
    let images = tempfile::tempdir().unwrap();
    add_small(images.path(), "small");
    let server = Server::start_with(Options { images: Some(images.path().to_owned()), ..Options::default() });
    let elsewhere = tempfile::tempdir().unwrap();
    let (url, data) = (server.url(""), server.data().display().to_string());

    let listed = ask(elsewhere.path(), &url, &["image", "list"]).expect(0);
    assert!(
        listed.stdout.contains("small") && listed.stderr.contains(&url),
        "{}{}",
        listed.stdout,
        listed.stderr
    );
    let doctor = ask(elsewhere.path(), &url, &["doctor", "--json"]).expect(0).json();
    assert_eq!(doctor["server"]["data"], data, "{doctor:#}");
    let doctor = ask(elsewhere.path(), &url, &["doctor"]).expect(0);
    assert!(doctor.stdout.contains(&data) && doctor.stderr.contains("version"), "{}", doctor.stdout);
    let check = ask(elsewhere.path(), &url, &["config", "check", "--json"]).expect(0).json();
    let hints = check["hints"].to_string();
    assert!(hints.contains("uses another file") && hints.contains("uses another data folder"), "{hints}");

    // A flag names the folder, whether or not a server answers.
    let local = ask(elsewhere.path(), &url, &["image", "list", "--json", "--data", "mine"]).expect(0).json();
    assert_eq!(local["images"], json!([]));
    assert_eq!(
        ask(elsewhere.path(), &url, &["doctor", "--json", "--data", "mine"]).json()["server"],
        json!(null)
    );
}

#[test]
fn commands_about_the_host_say_that_no_server_answers() {
    let folder = tempfile::tempdir().unwrap();
    for words in [&["image", "list"][..], &["doctor"], &["config", "check"]] {
        let told = ask(folder.path(), NO_SERVER, words).expect(0).stderr;
        let data = folder.path().join("data").display().to_string();
        assert!(
            told.contains(&format!("no server answers at {NO_SERVER}")) && told.contains(&data),
            "{told}"
        );
    }
    ask(folder.path(), NO_SERVER, &["image", "list", "--url", NO_SERVER])
        .expect_message(2, &["no server answers"]);
}
