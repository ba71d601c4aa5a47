//! The seccomp profile for containers, built from the same data as the filter of namespace sandboxes.
//!
//! In that filter a refusal overrides a permission. An engine's profile has a single verdict per system call, so a
//! call that is refused under certain conditions is allowed here under the opposite conditions. libseccomp, which the
//! engine uses, joins conditions only on different arguments and compares 64 bits, where the kernel looks at 32.
//! Cubes solve both: some bits of an argument must have a given value, the others do not matter.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::host::seccomp::{Rules, rules};

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;
const ALL_BITS: u32 = u32::MAX;
/// Calls that fail with `ENOSYS`, because programs fall back only if a call does not exist: from `clone3` to `clone`,
/// whose flags a filter can inspect, and from Linux AIO, whose slots all jobs of a host share, to threads.
const ABSENT: [&str; 7] =
    ["clone3", "io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit"];

/// A rule that refuses a call if all of its conditions hold.
#[derive(Debug, Clone, Deserialize)]
struct Refusal {
    syscall: String,
    args: Vec<Condition>,
}

#[derive(Debug, Clone, Deserialize)]
struct Condition {
    index: u8,
    op: Comparison,
    val: u64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Comparison {
    Eq,
    Ne,
    MaskedEq(u64),
}

/// The set of values whose bits under `mask` equal `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cube {
    mask: u32,
    value: u32,
}

/// One cube per argument that matters. All must match.
type Term = BTreeMap<u8, Cube>;

impl Cube {
    fn intersect(self, other: Self) -> Option<Self> {
        let clash = self.mask & other.mask & (self.value ^ other.value);
        (clash == 0).then_some(Self { mask: self.mask | other.mask, value: self.value | other.value })
    }

    fn covers(self, other: Self) -> bool {
        other.mask & self.mask == self.mask && (other.value ^ self.value) & self.mask == 0
    }

    /// All values outside this cube, as disjoint cubes.
    fn complement(self) -> Vec<Self> {
        let mut above = 0;
        let mut cubes = Vec::new();
        for bit in (0..u32::BITS).rev().map(|number| 1 << number).filter(|bit| self.mask & bit != 0) {
            above |= bit;
            cubes.push(Self { mask: above, value: (self.value & above) ^ bit });
        }
        cubes
    }
}

impl Condition {
    /// The cubes in which the condition does not hold.
    fn negation(&self) -> Result<Vec<Cube>, String> {
        let low = |value: u64| u32::try_from(value).map_err(|_| format!("{value} has more than 32 bits"));
        let value = low(self.val)?;
        Ok(match self.op {
            Comparison::Eq => Cube { mask: ALL_BITS, value }.complement(),
            Comparison::Ne => vec![Cube { mask: ALL_BITS, value }],
            Comparison::MaskedEq(mask) => Cube { mask: low(mask)?, value }.complement(),
        })
    }
}

/// The terms under which none of the refusals applies.
fn allowed(refusals: &[Refusal]) -> Result<Vec<Term>, String> {
    let mut clauses: Vec<Vec<(u8, Cube)>> = Vec::new();
    for refusal in refusals {
        let mut clause = Vec::new();
        for condition in &refusal.args {
            clause.extend(condition.negation()?.into_iter().map(|cube| (condition.index, cube)));
        }
        clauses.push(clause);
    }
    // The shortest come first, which keeps the intermediate results small.
    clauses.sort_by_key(Vec::len);
    let mut terms = vec![Term::new()];
    for clause in clauses {
        let both = |(index, cube): &(u8, Cube), term: &Term| {
            let before = term.get(index).copied().unwrap_or(Cube { mask: 0, value: 0 });
            let mut term = term.clone();
            term.insert(*index, before.intersect(*cube)?);
            Some(term)
        };
        let next: Vec<Term> =
            terms.iter().flat_map(|term| clause.iter().filter_map(move |cube| both(cube, term))).collect();
        terms = without_covered(&next);
    }
    Ok(terms)
}

/// Drops terms that another term covers.
fn without_covered(terms: &[Term]) -> Vec<Term> {
    let covers = |wide: &Term, narrow: &Term| {
        wide.iter().all(|(index, cube)| narrow.get(index).is_some_and(|other| cube.covers(*other)))
    };
    let is_kept = |(number, term): &(usize, &Term)| {
        !terms.iter().enumerate().any(|(other_number, other)| {
            let is_same = other == *term;
            (is_same && other_number < *number) || (!is_same && covers(other, term))
        })
    };
    terms.iter().enumerate().filter(is_kept).map(|(_, term)| term.clone()).collect()
}

/// The profile in the engine's JSON format. Built once.
///
/// # Errors
/// Fails if the embedded data is invalid.
pub(super) fn profile() -> Result<&'static str, &'static str> {
    static PROFILE: LazyLock<Result<String, String>> = LazyLock::new(|| make(rules()?));
    PROFILE.as_deref().map_err(String::as_str)
}

fn make(rules: Rules) -> Result<String, String> {
    let mut conditional: BTreeMap<String, Vec<Refusal>> = BTreeMap::new();
    for rule in rules.refuse.into_iter().flat_map(|group| group.rules) {
        let refusal: Refusal = serde_json::from_value(rule).map_err(|error| error.to_string())?;
        conditional.entry(refusal.syscall.clone()).or_default().push(refusal);
    }
    let mut entries = Vec::new();
    for group in rules.allow {
        let includes = match group.only.as_deref() {
            None => json!({}),
            Some("x86_64") => json!({"arches": ["amd64"]}),
            Some(other) => return Err(format!("unknown CPU architecture {other}")),
        };
        let (with, without): (Vec<_>, Vec<_>) =
            group.syscalls.into_iter().partition(|name| conditional.contains_key(name));
        entries.push(json!({"names": without, "action": "SCMP_ACT_ALLOW", "includes": includes}));
        for name in with {
            for term in allowed(conditional.get(&name).map(Vec::as_slice).unwrap_or_default())? {
                entries.push(json!({
                    "names": [name],
                    "action": "SCMP_ACT_ALLOW",
                    "includes": includes,
                    "args": term.iter().map(|(index, cube)| argument(*index, *cube)).collect::<Vec<_>>(),
                }));
            }
        }
    }
    entries.push(json!({"names": ABSENT, "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}));
    let profile = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": entries,
    });
    Ok(profile.to_string())
}

fn argument(index: u8, cube: Cube) -> Value {
    json!({"index": index, "value": cube.mask, "valueTwo": cube.value, "op": "SCMP_CMP_MASKED_EQ"})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(condition: &Condition, arguments: [u32; 6]) -> bool {
        let found = u64::from(arguments[usize::from(condition.index)]);
        match condition.op {
            Comparison::Eq => found == condition.val,
            Comparison::Ne => found != condition.val,
            Comparison::MaskedEq(mask) => found & mask == condition.val & mask,
        }
    }

    fn fits(term: &Term, arguments: [u32; 6]) -> bool {
        term.iter().all(|(index, cube)| arguments[usize::from(*index)] & cube.mask == cube.value)
    }

    #[test]
    fn terms_allow_exactly_what_rules_do_not_refuse() {
        let mut conditional: BTreeMap<String, Vec<Refusal>> = BTreeMap::new();
        for rule in rules().unwrap().refuse.into_iter().flat_map(|group| group.rules) {
            let refusal: Refusal = serde_json::from_value(rule).unwrap();
            conditional.entry(refusal.syscall.clone()).or_default().push(refusal);
        }
        assert!(conditional.len() >= 5, "{:?}", conditional.keys());
        for (name, refusals) in conditional {
            let terms = allowed(&refusals).unwrap();
            assert!(!terms.is_empty() && terms.len() < 100, "{name}: {} terms", terms.len());
            // Numbers around every number that a rule names, and numbers far from them.
            let mut numbers: Vec<u32> = (0..40).chain([u32::MAX, 1 << 31, 0x7e02_0000, 17]).collect();
            for condition in refusals.iter().flat_map(|refusal| &refusal.args) {
                let value = u32::try_from(condition.val).unwrap();
                numbers.extend([value, value ^ 1, value.wrapping_add(1), value.wrapping_sub(1), value | 17]);
            }
            for first in &numbers {
                for second in &numbers {
                    for third in [0, 1, 9] {
                        let arguments = [*first, *second, third, 0, 0, 0];
                        let refused = refusals
                            .iter()
                            .any(|refusal| refusal.args.iter().all(|condition| holds(condition, arguments)));
                        let is_allowed = terms.iter().any(|term| fits(term, arguments));
                        assert_eq!(is_allowed, !refused, "{name} {arguments:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_profile_allows_no_call_that_is_refused() {
        let profile: Value = serde_json::from_str(profile().unwrap()).unwrap();
        let mut with_conditions = 0;
        for entry in profile["syscalls"].as_array().unwrap() {
            if entry["action"] != "SCMP_ACT_ALLOW" {
                continue;
            }
            with_conditions += usize::from(entry.get("args").is_some());
            for name in entry["names"].as_array().unwrap() {
                for refused in ["mount", "unshare", "setns", "bpf", "keyctl", "clone3"] {
                    assert_ne!(name, refused);
                }
                if entry.get("args").is_none() {
                    assert!(!["clone", "socket", "ioctl", "personality"].contains(&name.as_str().unwrap()));
                }
            }
        }
        assert!(with_conditions > 5);
    }
}
