//! Which top-level modules of a crate import each other, and which of them form cycles. For the rule in `tests/tidy.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::RustFile;

/// The top-level modules of one crate, each with the top-level modules that it imports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleGraph {
    imports: BTreeMap<String, BTreeSet<String>>,
}

impl ModuleGraph {
    /// Reads the modules of the crate in `crates/<folder>/src`. Tests are left out.
    #[must_use]
    pub fn of_crate(folder: &str, files: &[RustFile]) -> Self {
        let mut imports = BTreeMap::<String, BTreeSet<String>>::new();
        for file in files.iter().filter(|file| file.is_product() && !file.is_test() && !is_test_support(file))
        {
            let mut parts = file.path.iter().filter_map(|part| part.to_str()).skip(1);
            if parts.next() != Some(folder) || parts.next() != Some("src") {
                continue;
            }
            let Some(module) = parts.next().map(|name| name.trim_end_matches(".rs")) else { continue };
            if matches!(module, "lib" | "main") {
                continue;
            }
            imports
                .entry(module.to_owned())
                .or_default()
                .extend(modules_named_in(&file.code_without_tests()));
        }
        let modules: BTreeSet<String> = imports.keys().cloned().collect();
        for (module, imported) in &mut imports {
            imported.retain(|name| name != module && modules.contains(name));
        }
        Self { imports }
    }

    /// Whether a module imports another one directly.
    #[must_use]
    pub fn imports(&self, module: &str, other: &str) -> bool {
        self.imports.get(module).is_some_and(|imported| imported.contains(other))
    }

    /// Groups of modules that import each other, directly or by way of others.
    #[must_use]
    pub fn cycles(&self) -> Vec<BTreeSet<String>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.imports.keys().map(|module| (module.as_str(), self.reached_from(module))).collect();
        let mut cycles = BTreeSet::new();
        for (module, others) in &reached {
            let cycle: BTreeSet<String> = others
                .iter()
                .filter(|other| reached[**other].contains(module))
                .map(|other| (*other).to_owned())
                .collect();
            if !cycle.is_empty() {
                cycles.insert(cycle);
            }
        }
        cycles.into_iter().collect()
    }

    /// All modules that a module imports, directly or by way of others.
    fn reached_from(&self, module: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut rest: Vec<&str> = self.imports[module].iter().map(String::as_str).collect();
        while let Some(next) = rest.pop() {
            if reached.insert(next) {
                rest.extend(self.imports[next].iter().map(String::as_str));
            }
        }
        reached
    }
}

/// Whether a file serves only the tests of its crate.
fn is_test_support(file: &RustFile) -> bool {
    file.path.file_stem().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with("testing") || name.starts_with("tests_") || name.starts_with("test_")
    })
}

/// The first names after `crate::`, also in a group such as `crate::{a::A, b}`.
fn modules_named_in(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '$')) {
            continue;
        }
        let rest = &code[at + found.len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(first_names_of_group(group)),
            None => names.extend(first_name(rest)),
        }
    }
    names
}

fn first_names_of_group(group: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 0_usize;
    let mut is_first = true;
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_first = true,
            _ if is_first && depth == 0 && !character.is_whitespace() => {
                names.extend(first_name(&group[at..]));
                is_first = false;
            }
            _ => {}
        }
    }
    names
}

fn first_name(text: &str) -> Option<String> {
    let length = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (length > 0).then(|| text[..length].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> ModuleGraph {
        let imports = edges
            .iter()
            .map(|(module, imported)| {
                ((*module).to_owned(), imported.iter().map(|name| (*name).to_owned()).collect())
            })
            .collect();
        ModuleGraph { imports }
    }

    #[test]
    fn imports_are_found_alone_and_in_groups() {
        let code = "use crate::one::A;\nuse crate::{two, three::{x, y}, four::B};\nfn f() { crate::five::g(); $crate::six::h() }";
        let names: Vec<String> = modules_named_in(code).into_iter().collect();
        assert_eq!(names, ["five", "four", "one", "three", "two"]);
    }

    #[test]
    fn modules_that_import_each_other_are_a_cycle_and_their_users_are_not() {
        let graph =
            graph(&[("user", &["a"]), ("a", &["b"]), ("b", &["c"]), ("c", &["a", "leaf"]), ("leaf", &[])]);
        let cycles = graph.cycles();
        assert_eq!(cycles, [["a", "b", "c"].map(str::to_owned).into()]);
        assert!(graph.imports("a", "b") && !graph.imports("a", "c") && !graph.imports("nothing", "a"));
        assert!(self::graph(&[("a", &["b"]), ("b", &[])]).cycles().is_empty());
    }
}
