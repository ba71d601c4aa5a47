//! Every fuzz target passes on the inputs of its corpus and on mutations of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The targets and their programs.
macro_rules! targets {
    ($($target:ident)*) => {
        const TARGETS: &[(&str, &str)] =
            &[$((stringify!($target), env!(concat!("CARGO_BIN_EXE_", stringify!($target))))),*];
    };
}

targets! {
    browser_pages
    call_marks
    egress_entrance
    egress_words
    image_homes
    image_layers
    image_layouts
    job_archives
    link_frames
    link_guest
    link_messages
    log_entry
    mcp_tools
    model_answers
    output_archives
    pictures
    source_maps
    vnc_viewer
    web_names
    workspace_paths
}

#[test]
fn every_target_passes_on_its_corpus_and_mutations() {
    let mut failed = String::new();
    for (name, program) in TARGETS {
        let output = Command::new(program).output().unwrap();
        if !output.status.success() {
            failed += &format!("{name}: {}\n{}\n", output.status, String::from_utf8_lossy(&output.stderr));
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

#[test]
fn every_target_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz_targets");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let names: BTreeSet<String> =
        sources.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    let ours = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names, ours, "add it to targets! and to Cargo.toml");
}
