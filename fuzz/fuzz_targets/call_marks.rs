//! The environment of a sandboxed process, which says to which call the process belongs. The parsed mark must fit in
//! a line of the file access log and must be what the environment contains.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/launcher/src/file_audit/process_info.rs"]
mod process_info;

fuzz_target!(|environment: &[u8]| {
    let Some(call) = process_info::parse_call(environment) else { return };
    assert!((1..=100).contains(&call.len()), "{call:?}");
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    assert!(call.chars().all(is_plain), "{call:?}");
    assert_eq!(serde_json::to_string(&call).expect("a text"), format!("\"{call}\""));
    let said = format!("HTTP_PROXY=http://{call}");
    let variables = environment.split(|byte| *byte == 0);
    let mut first = variables.filter(|variable| variable.starts_with(b"HTTP_PROXY=http://"));
    let first = first.next().expect("a variable that names a proxy");
    let rest = first.strip_prefix(said.as_bytes()).expect("the first of them names the call");
    assert!(rest.is_empty() || rest[0] == b':', "{rest:?}");
});
