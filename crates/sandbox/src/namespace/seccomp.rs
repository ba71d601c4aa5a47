//! Compiles `seccomp.json` into BPF programs.
//!
//! Listed calls are allowed. All others fail with `ENOSYS`, as on an older kernel, so that programs fall back. Calls
//! for which programs need a different error are refused by name, either always or depending on their arguments.
//!
//! The kernel evaluates a filter for every system call number when it is installed, and again for every call that is
//! not always allowed. So this builds a single program with a binary search for the call's number.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use seccompiler::{BpfProgram, sock_filter};
use serde_json::{Value, json};

use crate::host::seccomp::{Rules, SOURCE};

/// Additional refusals for sandboxes without namespaces.
const LANDLOCK_ONLY_SOURCE: &str = include_str!("seccomp_landlock_only.json");
const ENOSYS: i32 = 38;

// From linux/bpf_common.h and linux/seccomp.h.
const LOAD_WORD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;
const RETURN_KILL_PROCESS: u32 = 0x8000_0000;
const RETURN_ERRNO: u32 = 0x0005_0000;
const RETURN_ALLOW: u32 = 0x7fff_0000;
const OFFSET_OF_NUMBER: u32 = 0;
const OFFSET_OF_ARCH: u32 = 4;

/// The program in hexadecimal. Compiled once.
///
/// # Errors
/// Fails if the embedded data is invalid for this CPU architecture.
pub(super) fn program() -> Result<&'static str, &'static str> {
    static PROGRAM: LazyLock<Result<String, String>> = LazyLock::new(|| compile_hexadecimal(&[SOURCE]));
    PROGRAM.as_deref().map_err(String::as_str)
}

/// The program for sandboxes without namespaces.
pub(super) fn landlock_only_program() -> Result<&'static str, &'static str> {
    static PROGRAM: LazyLock<Result<String, String>> =
        LazyLock::new(|| compile_hexadecimal(&[SOURCE, LANDLOCK_ONLY_SOURCE]));
    PROGRAM.as_deref().map_err(String::as_str)
}

fn compile_hexadecimal(sources: &[&str]) -> Result<String, String> {
    compile(sources).map(|program| hexadecimal(&program))
}

/// The rules as lists for the compiler.
struct Lists {
    allowed: Vec<Value>,
    /// By errno.
    refused: BTreeMap<i32, Vec<Value>>,
}

impl Lists {
    fn read(sources: &[&str]) -> Result<Self, String> {
        let here = |only: &Option<String>| only.as_deref().is_none_or(|arch| arch == std::env::consts::ARCH);
        let by_name = |name: &String| json!({"syscall": name});
        let mut lists = Self { allowed: Vec::new(), refused: BTreeMap::new() };
        for source in sources {
            let rules: Rules = serde_json::from_str(source).map_err(|error| error.to_string())?;
            for group in rules.allow.iter().filter(|group| here(&group.only)) {
                lists.allowed.extend(group.syscalls.iter().map(by_name));
            }
            for group in rules.refuse.into_iter().filter(|group| here(&group.only)) {
                let list = lists.refused.entry(group.errno).or_default();
                list.extend(group.syscalls.iter().map(by_name));
                list.extend(group.rules);
            }
        }
        Ok(lists)
    }
}

fn compile(sources: &[&str]) -> Result<BpfProgram, String> {
    let Lists { allowed, refused } = Lists::read(sources)?;
    let list = compile_list(&allowed, ENOSYS)?;
    let arch = list.get(1).ok_or("the filter compares nothing")?.k;
    let absent = answer(RETURN_ERRNO | ENOSYS.unsigned_abs());
    let mut answers: BTreeMap<u32, BpfProgram> = BTreeMap::new();
    for number in numbers(&list) {
        answers.insert(number, answer(RETURN_ALLOW));
    }
    // If two refusals apply to a call, the one with the higher errno wins.
    for (errno, list) in refused {
        let (by_arguments, by_call): (Vec<_>, Vec<_>) =
            list.into_iter().partition(|rule| rule.get("args").is_some());
        for number in numbers(&compile_list(&by_call, errno)?) {
            answers.insert(number, answer(RETURN_ERRNO | errno.unsigned_abs()));
        }
        let mut by_name: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for rule in by_arguments {
            by_name.entry(rule["syscall"].to_string()).or_default().push(rule);
        }
        for rules in by_name.values() {
            let (number, refusal) = compile_refusal(rules, errno)?;
            let otherwise = answers.remove(&number).unwrap_or_else(|| absent.clone());
            answers.insert(number, [refusal, otherwise].concat());
        }
    }
    // The call numbers at which the verdict changes: the start of each run of numbers, and its end.
    let mut changes = vec![(0, absent.clone())];
    for (number, answer) in answers {
        changes.pop_if(|(first, _)| *first == number);
        if changes.last().is_none_or(|(_, before)| *before != answer) {
            changes.push((number, answer));
        }
        changes.push((number + 1, absent.clone()));
    }
    let mut program = vec![
        instruction(LOAD_WORD, 0, 0, OFFSET_OF_ARCH),
        instruction(JUMP_IF_EQUAL, 1, 0, arch),
        instruction(RETURN, 0, 0, RETURN_KILL_PROCESS),
        instruction(LOAD_WORD, 0, 0, OFFSET_OF_NUMBER),
    ];
    program.extend(binary_search(&changes));
    Ok(program)
}

fn compile_rules(list: &[Value], mismatch: &Value, found: &Value) -> Result<BpfProgram, String> {
    const NAME: &str = "filter";
    let arch =
        std::env::consts::ARCH.try_into().map_err(|_| "no seccomp filters for this CPU architecture")?;
    let text =
        json!({NAME: {"mismatch_action": mismatch, "match_action": found, "filter": list}}).to_string();
    let mut compiled =
        seccompiler::compile_from_json(text.as_bytes(), arch).map_err(|error| error.to_string())?;
    compiled.remove(NAME).ok_or_else(|| "the compiler lost the filter".into())
}

fn compile_list(list: &[Value], errno: i32) -> Result<BpfProgram, String> {
    compile_rules(list, &json!({"errno": errno}), &json!("allow"))
}

/// The call numbers that a program without argument conditions compares with, whatever the verdict.
fn numbers(program: &[sock_filter]) -> impl Iterator<Item = u32> {
    // The first comparison checks the architecture.
    program.iter().filter(|i| i.code == JUMP_IF_EQUAL).skip(1).map(|i| i.k)
}

/// Compiles the argument conditions of one system call. Returns its number and the body of the program, which falls
/// through at the end if nothing is refused.
fn compile_refusal(rules: &[Value], errno: i32) -> Result<(u32, BpfProgram), String> {
    let program = compile_rules(rules, &json!("allow"), &json!({"errno": errno}))?;
    // The instructions before the body check the architecture and the call number.
    let (found, body) = program.get(4..).and_then(<[_]>::split_first).ok_or("the filter refuses nothing")?;
    let mut body = body.to_vec();
    let length = u32::try_from(body.len()).map_err(|error| error.to_string())?;
    for (at, it) in (1..).zip(&mut body).filter(|(_, it)| it.code == RETURN && it.k == RETURN_ALLOW) {
        *it = instruction(JUMP, 0, 0, length - at);
    }
    Ok((found.k, body))
}

fn binary_search(changes: &[(u32, BpfProgram)]) -> BpfProgram {
    if let [(_, answer)] = changes {
        return answer.clone();
    }
    let (lower, upper) = changes.split_at(changes.len() / 2);
    let (before, after) = (binary_search(lower), binary_search(upper));
    let middle = upper[0].0;
    let decision = match u8::try_from(before.len()) {
        Ok(distance) => vec![instruction(JUMP_IF_GREATER_OR_EQUAL, distance, 0, middle)],
        // Too far for a conditional jump.
        Err(_) => vec![
            instruction(JUMP_IF_GREATER_OR_EQUAL, 0, 1, middle),
            instruction(JUMP, 0, 0, u32::try_from(before.len()).unwrap_or(u32::MAX)),
        ],
    };
    [decision, before, after].concat()
}

fn answer(value: u32) -> BpfProgram {
    vec![instruction(RETURN, 0, 0, value)]
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_rules_compile() {
        let program = program().unwrap();
        assert!(!program.is_empty() && program.len().is_multiple_of(16));
        assert_ne!(landlock_only_program(), Ok(program));
    }

    /// The verdict of a program on a call.
    fn answer(program: &[sock_filter], number: u32, arguments: [u64; 6]) -> u32 {
        const OFFSET_OF_ARGUMENTS: u32 = 16;
        const AND: u16 = 0x54;
        let (mut at, mut loaded) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let mut jump = |taken: bool| at += usize::from(if taken { jt } else { jf });
            match code {
                LOAD_WORD if k == OFFSET_OF_ARCH => loaded = program[1].k,
                LOAD_WORD if k == OFFSET_OF_NUMBER => loaded = number,
                LOAD_WORD => {
                    let (index, half) =
                        ((k - OFFSET_OF_ARGUMENTS) as usize / 8, (k - OFFSET_OF_ARGUMENTS) % 8 / 4);
                    loaded = (arguments[index] >> (32 * half)) as u32;
                }
                AND => loaded &= k,
                JUMP_IF_EQUAL => jump(loaded == k),
                JUMP_IF_GREATER_OR_EQUAL => jump(loaded >= k),
                JUMP => at += k as usize,
                RETURN => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    /// The kernel's verdict with several filters: a refusal wins over a permission, and of two refusals that of the
    /// later filter.
    fn answer_of_all(programs: &[BpfProgram], number: u32, arguments: [u64; 6]) -> u32 {
        let answers = programs.iter().rev().map(|program| answer(program, number, arguments));
        answers.reduce(|first, next| if first == RETURN_ALLOW { next } else { first }).unwrap()
    }

    /// One program for the allowed calls and one per errno, as the compiler emits them.
    fn one_by_one(sources: &[&str]) -> Vec<BpfProgram> {
        let Lists { allowed, refused } = Lists::read(sources).unwrap();
        let mut programs = vec![compile_list(&allowed, ENOSYS).unwrap()];
        for (errno, list) in refused {
            programs.push(compile_rules(&list, &json!("allow"), &json!({"errno": errno})).unwrap());
        }
        programs
    }

    /// Argument values that the rules compare with, and others. The first [`COMBINED`] of them are tried in all
    /// combinations.
    const SAMPLES: [u64; 27] = [
        0,
        1,
        2,
        3,
        6,
        10,
        15,
        16,
        30,
        0x2000_0000,
        0x1_0000_0000,
        4,
        5,
        8,
        17,
        21522,
        21532,
        0x2_0000,
        0x4_0000,
        0x200_0000,
        0x400_0000,
        0x800_0000,
        0x1000_0000,
        0x4000_0000,
        0xffff_ffff,
        0x1_0000_0002,
        u64::MAX,
    ];
    const COMBINED: usize = 11;

    fn arguments() -> Vec<[u64; 6]> {
        let mut all: Vec<[u64; 6]> = SAMPLES.iter().map(|value| [*value; 6]).collect();
        for first in &SAMPLES[..COMBINED] {
            for second in &SAMPLES[..COMBINED] {
                all.extend(SAMPLES[..COMBINED].iter().map(|third| [*first, *second, *third, *second, 0, 0]));
            }
        }
        all
    }

    #[test]
    fn combined_program_equals_separate_filters() {
        for sources in [&[SOURCE][..], &[SOURCE, LANDLOCK_ONLY_SOURCE]] {
            let (one, many) = (compile(sources).unwrap(), one_by_one(sources));
            let length: usize = many.iter().map(Vec::len).sum();
            assert!(one.len() * 3 < length, "{} instead of {length}", one.len());
            let refused = Lists::read(sources).unwrap().refused.into_values().flatten();
            let by_arguments: BTreeSet<u32> = refused
                .filter(|rule| rule.get("args").is_some())
                .map(|rule| compile_refusal(&[rule], 1).unwrap().0)
                .collect();
            let arguments = arguments();
            let mut seen = BTreeMap::new();
            for number in (0..600).chain([0x4000_0000, 0x4000_0001, u32::MAX]) {
                let tried = if by_arguments.contains(&number) { arguments.len() } else { SAMPLES.len() };
                for arguments in &arguments[..tried] {
                    let found = answer(&one, number, *arguments);
                    let wanted = answer_of_all(&many, number, *arguments);
                    assert_eq!(found, wanted, "call {number} {arguments:x?}");
                    *seen.entry(found).or_insert(0) += 1;
                }
            }
            let errors = [1, 38, 97].map(|errno| RETURN_ERRNO | errno);
            assert!(seen.keys().eq(errors.iter().chain([&RETURN_ALLOW])), "{seen:x?}");
        }
    }

    #[test]
    fn long_jumps_reach_their_target() {
        let long = |value| [vec![instruction(LOAD_WORD, 0, 0, 0); 300], super::answer(value)].concat();
        let changes: Vec<_> = (0..8).map(|number| (number, long(number))).collect();
        let program =
            [vec![instruction(LOAD_WORD, 0, 0, OFFSET_OF_NUMBER)], binary_search(&changes)].concat();
        for number in 0..8 {
            assert_eq!(answer(&program, number, [0; 6]), number);
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
    fn every_rule_group_has_a_reason() {
        for source in [SOURCE, LANDLOCK_ONLY_SOURCE] {
            let rules: Value = serde_json::from_str(source).unwrap();
            let groups =
                ["allow", "refuse"].map(|list| rules[list].as_array().unwrap()).into_iter().flatten();
            for group in groups {
                assert!(group["reason"].as_str().unwrap().len() > 10, "{group}");
            }
        }
    }

    #[test]
    fn clone3_is_absent_so_that_programs_use_clone() {
        assert!(!SOURCE.contains("\"clone3\""));
    }
}
