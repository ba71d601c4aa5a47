//! `caisson config check`, shell completions and manual pages.

use crate::cli_command::{Outcome, command, finish};

fn check(text: &str, more: &[&str]) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("caisson.toml"), text).unwrap();
    let words: Vec<&str> =
        ["config", "check", "--config", "caisson.toml"].iter().chain(more).copied().collect();
    finish(command(folder.path(), &words), "")
}

#[test]
fn config_check_shows_the_source_of_each_value() {
    let shown = check("[jobs]\nmax_running = 3\n[limits.max]\ncpus = 64.0\n", &[]).expect(0).stdout;
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("jobs.max_running").ends_with("caisson.toml:2"), "{shown}");
    assert!(line("data").ends_with("environment CAISSON_DATA"), "{shown}");
    assert!(line("jobs.max_queued").ends_with("default"), "{shown}");
    assert!(line("limits.max.cpus").ends_with("caisson.toml:4"), "{shown}");
    assert!(line("limits.max.memory_mib").ends_with("this host"), "{shown}");
}

#[test]
fn config_errors_name_the_line_and_allowed_values() {
    let wrong = "log = \"loud\"\n[jobs]\nmax_runing = 3\nmax_losses = -1\n[limits]\ncpus = 0.0\n";
    let shown = check(wrong, &[]).expect(1).stdout;
    for (line, words) in [
        (1, "log:"),
        (3, "did you mean jobs.max_running?"),
        (4, "must be a whole number"),
        (6, "0.01 and 1024"),
    ] {
        let told = shown
            .lines()
            .any(|text| text.starts_with(&format!("caisson.toml:{line}:")) && text.contains(words));
        assert!(told, "no line {line} with `{words}` in:\n{shown}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("other.toml"), wrong).unwrap();
    let named = finish(command(folder.path(), &["config", "check", "other.toml"]), "").expect(1).stdout;
    assert!(named.contains("other.toml:3:"), "{named}");
    let document = check(wrong, &["--json"]).expect(1).json();
    assert_eq!(document["ok"], false);
    assert_eq!(document["problems"].as_array().unwrap().len(), 4, "{document:#}");
}

#[test]
fn completions_and_manual_pages_are_written() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = finish(command(folder.path(), &["completions", shell]), "").expect(0).stdout;
        assert!(script.contains("sandboxes"), "{shell}");
    }
    finish(command(folder.path(), &["man", "pages"]), "").expect(0);
    let page = std::fs::read_to_string(folder.path().join("pages/caisson-run.1")).unwrap();
    assert!(page.contains("Examples:"), "{page}");
}

#[test]
fn server_reports_all_configuration_errors_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = "size = 3\n[jobs]\nmax_runing = 3\n[limits]\ncpus = 0.0\n";
    std::fs::write(folder.path().join("caisson.toml"), wrong).unwrap();
    finish(command(folder.path(), &["serve", "--config", "caisson.toml"]), "").expect_message(
        2,
        &[
            "caisson.toml:1: size: unknown setting outside of a section; `size` belongs below [pool]",
            "caisson.toml:3: jobs.max_runing: unknown setting; did you mean jobs.max_running?",
            "caisson.toml:5: limits.cpus: 0 is not between 0.01 and 1024",
        ],
    );
}

#[test]
fn misspelled_environment_variable_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut check = command(folder.path(), &["config", "check"]);
    check.env("CAISSON_LISTN", "127.0.0.1:1");
    let shown = finish(check, "").expect(0).stdout;
    assert!(shown.contains("CAISSON_LISTN") && shown.contains("did you mean CAISSON_LISTEN?"), "{shown}");
}

#[test]
fn quiet_config_check_prints_only_errors() {
    assert_eq!(check("[jobs]\nmax_running = 3\n", &["--quiet"]).expect(0).stdout, "");
    assert!(check("colour = 1\n", &["--quiet"]).expect(1).stdout.contains("colour"));
}
