//! `caisson doctor` on a host where nothing works, which is where it is needed most.

use std::fs;

use serde_json::Value;

use crate::cli_command::{Outcome, command, finish};

fn doctor(folder: &std::path::Path, words: &[&str]) -> Outcome {
    let words: Vec<&str> = std::iter::once(&"doctor").chain(words).copied().collect();
    finish(command(folder, &words), "")
}

fn row<'a>(document: &'a Value, name: &str) -> &'a Value {
    let checks = document["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {document:#}"))
}

#[test]
fn unusable_data_folder_is_a_row_in_the_doctor_table() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let table = doctor(folder.path(), &["--data", "file/data"]).expect(1).stdout;
    let line = table.lines().position(|line| line.starts_with("no    data folder")).expect(&table);
    let remedy = table.lines().nth(line + 1).unwrap();
    assert!(remedy.contains("-> choose another folder: --data FOLDER"), "{table}");
    for other in ["kernel", "namespaces", "seccomp", "cgroups"] {
        assert!(
            table.lines().any(|line| line.get(6..).is_some_and(|line| line.starts_with(other))),
            "{table}"
        );
    }
    assert!(table.contains("this host cannot run sandboxes: data folder: "), "{table}");

    let document = doctor(folder.path(), &["--data", "file/data", "--json"]).expect(1).json();
    assert_eq!(row(&document, "data folder")["state"], "missing");
    assert_eq!(row(&document, "run folder")["state"], "good");
    assert_eq!(row(&document, "kernel")["state"], "good");
    assert!(row(&document, "requests")["found"].as_str().unwrap().starts_with("at most "), "{document:#}");
    assert_eq!(document["backend"], "namespace");
    assert!(document["error"].is_string(), "{document:#}");
}

#[test]
fn unusable_run_folder_is_a_row_in_the_doctor_table() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    for run in ["file", &format!("{}/{}", folder.path().display(), "x".repeat(100))] {
        let document = doctor(folder.path(), &["--run-dir", run, "--json"]).expect(1).json();
        let run = row(&document, "run folder");
        assert!(run["state"] == "missing" && run["remedy"].as_str().unwrap().contains("--run-dir"), "{run}");
        assert_eq!(row(&document, "data folder")["state"], "good");
    }
}

#[test]
fn doctor_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    doctor(folder.path(), &[]).expect(0);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
    // Nor in a folder that exists already.
    fs::create_dir(folder.path().join("data")).unwrap();
    doctor(folder.path(), &[]).expect(0);
    let left: Vec<_> =
        fs::read_dir(folder.path().join("data")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
