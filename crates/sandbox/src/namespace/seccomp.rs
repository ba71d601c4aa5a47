//! Turns `seccomp.json` into programs for the kernel.
//!
//! The first program allows what is listed and answers "no such call" to all else, as an older kernel would, so that
//! programs fall back. The others refuse by name what programs should be told about. Where several match, the kernel
//! takes the refusal, and among refusals that of the program installed last.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

const SOURCE: &str = include_str!("seccomp.json");
const ENOSYS: i32 = 38;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    allow: Vec<AllowGroup>,
    refuse: Vec<RefuseGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowGroup {
    #[serde(rename = "group")]
    _group: String,
    #[serde(rename = "reason")]
    _reason: String,
    only: Option<String>,
    syscalls: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefuseGroup {
    #[serde(rename = "group")]
    _group: String,
    #[serde(rename = "reason")]
    _reason: String,
    only: Option<String>,
    errno: i32,
    #[serde(default)]
    syscalls: Vec<String>,
    #[serde(default)]
    rules: Vec<Value>,
}

/// The programs as hexadecimal text, in the order in which they must be installed. Compiled once.
///
/// # Errors
/// The data is wrong for this processor.
pub(super) fn programs() -> Result<&'static [String], &'static str> {
    static PROGRAMS: LazyLock<Result<Vec<String>, String>> = LazyLock::new(compile);
    PROGRAMS.as_deref().map_err(String::as_str)
}

fn compile() -> Result<Vec<String>, String> {
    let rules: Rules = serde_json::from_str(SOURCE).map_err(|error| error.to_string())?;
    let here = |only: &Option<String>| only.as_deref().is_none_or(|arch| arch == std::env::consts::ARCH);
    let allowed: Vec<Value> = rules
        .allow
        .iter()
        .filter(|group| here(&group.only))
        .flat_map(|group| group.syscalls.iter().map(|name| json!({"syscall": name})))
        .collect();
    let mut refused: BTreeMap<i32, Vec<Value>> = BTreeMap::new();
    for group in rules.refuse.into_iter().filter(|group| here(&group.only)) {
        let list = refused.entry(group.errno).or_default();
        list.extend(group.syscalls.iter().map(|name| json!({"syscall": name})));
        list.extend(group.rules);
    }
    let mut filters = vec![json!({
        "mismatch_action": {"errno": ENOSYS}, "match_action": "allow", "filter": allowed
    })];
    filters.extend(refused.into_iter().map(
        |(errno, list)| json!({"mismatch_action": "allow", "match_action": {"errno": errno}, "filter": list}),
    ));
    filters.iter().map(compile_one).collect()
}

fn compile_one(filter: &Value) -> Result<String, String> {
    const NAME: &str = "filter";
    let arch = std::env::consts::ARCH.try_into().map_err(|_| "no seccomp filters for this processor")?;
    let text = json!({NAME: filter}).to_string();
    let mut compiled =
        seccompiler::compile_from_json(text.as_bytes(), arch).map_err(|error| error.to_string())?;
    let program = compiled.remove(NAME).ok_or("the compiler lost the filter")?;
    let mut hexadecimal = String::with_capacity(program.len() * 16);
    for instruction in program {
        let mut bytes = Vec::with_capacity(8);
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
        for byte in bytes {
            hexadecimal.push_str(&format!("{byte:02x}"));
        }
    }
    Ok(hexadecimal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_compile() {
        let programs = programs().unwrap();
        assert_eq!(programs.len(), 3, "what is allowed, EPERM, EAFNOSUPPORT");
        assert!(programs.iter().all(|program| !program.is_empty() && program.len() % 16 == 0));
    }

    #[test]
    fn nothing_is_both_allowed_and_refused_without_a_condition() {
        let rules: Rules = serde_json::from_str(SOURCE).unwrap();
        let allowed: Vec<_> = rules.allow.iter().flat_map(|group| &group.syscalls).collect();
        for refused in rules.refuse.iter().flat_map(|group| &group.syscalls) {
            assert!(!allowed.contains(&refused), "{refused} is in both lists");
        }
    }

    #[test]
    fn every_group_gives_its_reason() {
        let rules: Rules = serde_json::from_str(SOURCE).unwrap();
        let allow = rules.allow.iter().map(|group| &group._reason);
        assert!(allow.chain(rules.refuse.iter().map(|group| &group._reason)).all(|reason| reason.len() > 10));
    }

    #[test]
    fn clone3_is_absent_so_that_flags_can_be_seen() {
        assert!(!SOURCE.contains("\"clone3\""));
    }
}
