//! Turns `seccomp.json` into programs for the kernel.
//!
//! The first program allows what is listed and answers "no such call" to all else, as an older kernel would, so that
//! programs fall back. The others refuse by name what programs should be told about. Where several match, the kernel
//! takes the refusal, and among refusals that of the program installed last.
//!
//! The list of what is allowed is long, and the kernel walks through a program for every system call there is when it is
//! installed. So that one is a binary search, which has far fewer instructions to walk through.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use seccompiler::{BpfProgram, sock_filter};
use serde::Deserialize;
use serde_json::{Value, json};

const SOURCE: &str = include_str!("seccomp.json");
/// What is refused beside that where there are no namespaces.
const SHELTER_SOURCE: &str = include_str!("seccomp_shelter.json");
const ENOSYS: i32 = 38;

// Of linux/bpf_common.h and linux/seccomp.h.
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;
const RETURN_KILL_PROCESS: u32 = 0x8000_0000;
const RETURN_ERRNO: u32 = 0x0005_0000;
const RETURN_ALLOW: u32 = 0x7fff_0000;
const OFFSET_OF_NUMBER: u32 = 0;
const OFFSET_OF_PROCESSOR: u32 = 4;

/// What is allowed and what is refused; other backends make their own form of it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    pub(crate) allow: Vec<AllowGroup>,
    pub(crate) refuse: Vec<RefuseGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AllowGroup {
    #[serde(rename = "group")]
    _group: String,
    #[serde(rename = "reason")]
    _reason: String,
    pub(crate) only: Option<String>,
    pub(crate) syscalls: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefuseGroup {
    #[serde(rename = "group")]
    _group: String,
    #[serde(rename = "reason")]
    _reason: String,
    only: Option<String>,
    errno: i32,
    #[serde(default)]
    syscalls: Vec<String>,
    #[serde(default)]
    pub(crate) rules: Vec<Value>,
}

/// The programs as hexadecimal text, in the order in which they must be installed. Compiled once.
///
/// # Errors
/// The data is wrong for this processor.
pub(super) fn programs() -> Result<&'static [String], &'static str> {
    static PROGRAMS: LazyLock<Result<Vec<String>, String>> = LazyLock::new(|| compile(&[SOURCE]));
    PROGRAMS.as_deref().map_err(String::as_str)
}

/// The same where there are no namespaces.
pub(super) fn shelter_programs() -> Result<&'static [String], &'static str> {
    static PROGRAMS: LazyLock<Result<Vec<String>, String>> =
        LazyLock::new(|| compile(&[SOURCE, SHELTER_SOURCE]));
    PROGRAMS.as_deref().map_err(String::as_str)
}

/// The data.
///
/// # Errors
/// It is wrong.
#[cfg(feature = "docker")]
pub(crate) fn rules() -> Result<Rules, String> {
    serde_json::from_str(SOURCE).map_err(|error| error.to_string())
}

fn compile(sources: &[&str]) -> Result<Vec<String>, String> {
    let mut rules = Rules::default();
    for source in sources {
        let more: Rules = serde_json::from_str(source).map_err(|error| error.to_string())?;
        rules.allow.extend(more.allow);
        rules.refuse.extend(more.refuse);
    }
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
    let allow = json!({"mismatch_action": {"errno": ENOSYS}, "match_action": "allow", "filter": allowed});
    let mut programs = vec![hexadecimal(&as_search(&compile_one(&allow)?)?)];
    for (errno, list) in refused {
        let filter = json!({"mismatch_action": "allow", "match_action": {"errno": errno}, "filter": list});
        programs.push(hexadecimal(&compile_one(&filter)?));
    }
    Ok(programs)
}

fn compile_one(filter: &Value) -> Result<BpfProgram, String> {
    const NAME: &str = "filter";
    let arch = std::env::consts::ARCH.try_into().map_err(|_| "no seccomp filters for this processor")?;
    let text = json!({NAME: filter}).to_string();
    let mut compiled =
        seccompiler::compile_from_json(text.as_bytes(), arch).map_err(|error| error.to_string())?;
    compiled.remove(NAME).ok_or_else(|| "the compiler lost the filter".into())
}

/// The same decisions as a program without conditions on arguments makes, by binary search.
fn as_search(program: &[sock_filter]) -> Result<BpfProgram, String> {
    let compared: Vec<u32> = program.iter().filter(|i| i.code == JUMP_IF_EQUAL).map(|i| i.k).collect();
    let (processor, numbers) = compared.split_first().ok_or("the filter compares nothing")?;
    let numbers: BTreeSet<u32> = numbers.iter().copied().collect();
    // Where the answer changes: at the start of each run of numbers, and after its end.
    let mut changes = vec![(0, Verdict::Absent)];
    for number in numbers {
        changes.pop_if(|last| *last == (number, Verdict::Absent));
        if changes.last().is_none_or(|(_, verdict)| *verdict == Verdict::Absent) {
            changes.push((number, Verdict::Allowed));
        }
        changes.push((number + 1, Verdict::Absent));
    }
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let mut search = vec![
        instruction(LOAD_WORD, 0, 0, OFFSET_OF_PROCESSOR),
        instruction(JUMP_IF_EQUAL, 1, 0, *processor),
        instruction(RETURN, 0, 0, RETURN_KILL_PROCESS),
        instruction(LOAD_WORD, 0, 0, OFFSET_OF_NUMBER),
    ];
    search.extend(search_in(&changes)?);
    Ok(search)
}

fn search_in(changes: &[(u32, Verdict)]) -> Result<BpfProgram, String> {
    if let [(_, verdict)] = changes {
        return Ok(vec![sock_filter { code: RETURN, jt: 0, jf: 0, k: verdict.answer() }]);
    }
    let (lower, upper) = changes.split_at(changes.len() / 2);
    let (before, after) = (search_in(lower)?, search_in(upper)?);
    let jump = u8::try_from(before.len()).map_err(|_| "the filter is too long for its jumps")?;
    let decision = sock_filter { code: JUMP_IF_GREATER_OR_EQUAL, jt: jump, jf: 0, k: upper[0].0 };
    Ok([vec![decision], before, after].concat())
}

/// What the first program answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Absent,
}

impl Verdict {
    fn answer(self) -> u32 {
        match self {
            Self::Allowed => RETURN_ALLOW,
            Self::Absent => RETURN_ERRNO | ENOSYS.unsigned_abs(),
        }
    }
}

fn hexadecimal(program: &[sock_filter]) -> String {
    let bytes = program.iter().flat_map(|instruction| {
        let [a, b] = instruction.code.to_ne_bytes();
        let [c, d, e, f] = instruction.k.to_ne_bytes();
        [a, b, instruction.jt, instruction.jf, c, d, e, f]
    });
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_compile() {
        let programs = programs().unwrap();
        assert_eq!(programs.len(), 3, "what is allowed, EPERM, EAFNOSUPPORT");
        assert!(programs.iter().all(|program| !program.is_empty() && program.len() % 16 == 0));
        assert_eq!(shelter_programs().unwrap().len(), 3, "the same kinds, with more refusals");
        assert_ne!(shelter_programs(), Ok(programs));
    }

    /// What a program answers to a call without arguments.
    fn answer(program: &[sock_filter], number: u32) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let mut jump = |taken: bool| at += usize::from(if taken { jt } else { jf });
            match code {
                LOAD_WORD if k == OFFSET_OF_PROCESSOR => loaded = program[1].k,
                LOAD_WORD => loaded = number,
                JUMP_IF_EQUAL => jump(loaded == k),
                JUMP_IF_GREATER_OR_EQUAL => jump(loaded >= k),
                0x05 => at += k as usize,
                RETURN => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn the_search_answers_as_the_list_does() {
        let rules: Rules = serde_json::from_str(SOURCE).unwrap();
        let names: Vec<_> = rules
            .allow
            .iter()
            .filter(|group| group.only.as_deref().is_none_or(|arch| arch == std::env::consts::ARCH))
            .flat_map(|group| &group.syscalls)
            .map(|name| json!({"syscall": name}))
            .collect();
        let filter = json!({"mismatch_action": {"errno": ENOSYS}, "match_action": "allow", "filter": names});
        let list = compile_one(&filter).unwrap();
        let search = as_search(&list).unwrap();
        assert!(search.len() * 4 < list.len(), "{} instead of {}", search.len(), list.len());
        let allowed = (0..1000).filter(|number| answer(&search, *number) == RETURN_ALLOW).count();
        assert_eq!(allowed, names.len());
        for number in (0..1000).chain([0x4000_0000, 0x4000_0001, u32::MAX]) {
            assert_eq!(answer(&search, number), answer(&list, number), "call {number}");
        }
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
        for source in [SOURCE, SHELTER_SOURCE] {
            let rules: Rules = serde_json::from_str(source).unwrap();
            let allow = rules.allow.iter().map(|group| &group._reason);
            let mut all = allow.chain(rules.refuse.iter().map(|group| &group._reason));
            assert!(all.all(|reason| reason.len() > 10));
        }
    }

    #[test]
    fn clone3_is_absent_so_that_flags_can_be_seen() {
        assert!(!SOURCE.contains("\"clone3\""));
    }
}
