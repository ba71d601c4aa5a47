//! Screenshots of the whole web page: fills a real server with jobs of every kind and captures every view and pane in
//! light, dark and phone width.
//!
//! ```text
//! cargo run -p caisson-e2e --example gallery -- FOLDER              all screenshots into a folder
//! cargo run -p caisson-e2e --example gallery -- FOLDER --stay       keep the server running until stdin closes
//! cargo run -p caisson-e2e --example gallery -- FOLDER --again [--page http://localhost:5173] [--only job-]
//!                                                                   use the kept server, optionally via `npm run dev`
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a tool for developers")]
#![allow(clippy::print_stdout, reason = "it says what it does")]

mod jobs;
mod screenshots;

use std::io::Read as _;
use std::path::PathBuf;

use serde_json::{Value, json};

struct Arguments {
    folder: PathBuf,
    stay: bool,
    again: bool,
    page: Option<String>,
    only: String,
}

fn read_arguments() -> Arguments {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("a folder for the pictures"));
    let mut arguments_given =
        Arguments { folder, stay: false, again: false, page: None, only: String::new() };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--stay" => arguments_given.stay = true,
            "--again" => arguments_given.again = true,
            "--page" => arguments_given.page = arguments.next(),
            "--only" => arguments_given.only = arguments.next().unwrap_or_default(),
            other => panic!("{other} is not known: --stay, --again, --page ADDRESS, --only NAME"),
        }
    }
    arguments_given
}

fn main() {
    let arguments_given = read_arguments();
    std::fs::create_dir_all(&arguments_given.folder).expect("making the folder");
    let kept = arguments_given.folder.join("gallery.json");
    if arguments_given.again {
        let text = std::fs::read_to_string(&kept).expect("no server stays: start one with --stay");
        let shown: Value = serde_json::from_str(&text).expect("a list of jobs");
        return take(&arguments_given, &shown);
    }
    let filled = jobs::fill();
    let address = format!("http://localhost:{}", filled.server.port);
    let shown = json!({"address": address, "jobs": filled.jobs});
    std::fs::write(&kept, shown.to_string()).expect("writing the list of jobs");
    println!("{shown:#}");
    if arguments_given.stay {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    } else {
        take(&arguments_given, &shown);
        screenshots::take_with_keys(&arguments_given.folder);
    }
}

fn take(arguments_given: &Arguments, shown: &Value) {
    let address =
        arguments_given.page.clone().unwrap_or_else(|| shown["address"].as_str().unwrap().to_owned());
    screenshots::take(&arguments_given.folder, &address, &shown["jobs"], &arguments_given.only);
}
