//! Repository rules, one test each. A failing test lists the violations and says how to fix them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "tidy/documentation.rs"]
mod documentation;
#[path = "tidy/events.rs"]
mod events;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use e2e::module_graph::ModuleGraph;
use e2e::source::{self, Depth, RustFile};
use serde_json::Value;

/// The package name of a crate is this prefix and the name of its folder.
const PREFIX: &str = "caisson-";

/// Which crate may depend on which, by folder name. The binary and the benchmarks may depend on all.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 19] = [
    ("server", &["job", "orchestrator", "protocol"]),
    ("job", &["agent", "sandbox", "egress", "context", "mcp", "model", "protocol"]),
    ("store", &["job"]),
    ("orchestrator", &["job", "store", "agent", "sandbox", "egress", "context", "mcp", "model", "protocol"]),
    ("agent", &["context", "model", "protocol"]),
    ("mcp", &["egress", "model"]),
    ("guest", &["protocol"]),
    ("sandbox", &["protocol", "launcher"]),
    ("launcher", &[]),
    ("protocol", &[]),
    ("image", &[]),
    ("egress", &[]),
    ("model", &[]),
    ("context", &[]),
    ("bench-agent", &["agent", "context", "model", "protocol"]),
    ("bench-context", &["context"]),
    ("e2e", &[]),
    ("fuzz-replay", &["context", "egress", "job", "model", "protocol"]),
    ("web", &[]),
];

/// Dependencies that only some of our crates may use, by folder name.
const RESTRICTED_DEPENDENCIES: [(&str, &[&str]); 9] = [
    ("axum", &["server"]),
    ("tower-http", &["server"]),
    ("utoipa-axum", &["server"]),
    ("hyper", &["server", "egress"]),
    ("hyper-util", &["server", "egress"]),
    ("reqwest", &["caisson", "model", "server", "e2e", "bench"]),
    ("rusqlite", &["store"]),
    ("landlock", &["launcher", "guest"]),
    ("anyhow", &["caisson", "e2e", "bench", "bench-agent", "bench-context"]),
];

const MOST_LINES: usize = 700;

/// What the crate `job` does not do: wait, or use files, processes, the network and clocks. (Ids carry the time when they were made.)
const NOT_IN_JOB: [&str; 10] = [
    "async fn",
    "await",
    "tokio",
    "futures",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "SystemTime",
    "Instant",
];

/// The backends, by their folders in `crates/sandbox/src`.
const BACKENDS: [&str; 2] = ["docker", "namespace"];

/// What every backend has a file for: its settings, and the methods of `Backend`.
const BACKEND_FILES: [&str; 8] =
    ["checks", "config", "connect", "create", "destroy", "list", "observe", "preflight"];

const VAGUE_NAMES: [&str; 7] = ["util", "utils", "helper", "helpers", "common", "manager", "misc"];

/// Names of earlier versions, and what is used instead. Exact identifiers, so that ordinary words are not rejected.
const REPLACED_NAMES: &[(&str, &str)] = &[
    ("Happening", "Transition"),
    ("Wish", "ControlRequest"),
    ("PersonDeed", "UserAction"),
    ("Deed", "AccessLogEntry"),
    ("Weighed", "ContentDigest"),
    ("Outward", "JobEgress"),
    ("EgressDesk", "EgressApprovals"),
    ("Ears", "DeltaSubscription"),
    ("Surroundings", "ForwardContext"),
    ("give_birth", "clone_child"),
    ("take_up", "start"),
    ("setbacks", "retry_backoff"),
    ("outward", "egress"),
    ("jobs_may", "allowed_model_urls"),
    ("refuse_also", "deny_ranges"),
    ("too_fast", "rate_limited"),
    ("wished", "control_requested"),
    ("is_cancel_wished", "is_cancel_requested"),
    ("person_acted", "user_action"),
    ("deeds", "user_actions"),
    ("done_by", "actor"),
    ("sandbox_stopped", "sandbox_paused"),
    ("sandbox_continued", "sandbox_resumed"),
    ("note_kept", "note_saved"),
    ("request_opened", "input_requested"),
    ("request_answered", "input_answered"),
    ("agent_told", "agent_notified"),
    ("summary_made", "summary_created"),
    ("audit_stored", "audit_file_stored"),
    ("host_unfit", "host_unsupported"),
    ("shutdown_patience_s", "shutdown_grace_s"),
    ("wait_for_reader", "backpressure"),
    ("PersonRequest", "InputRequest"),
    ("PersonAnswer", "InputAnswer"),
    ("Sight", "VisionSupport"),
    ("StepOrigin", "CallStart"),
    ("ModelSurvey", "ModelStatus"),
    ("VisitorRights", "SandboxRights"),
];

#[track_caller]
fn assert_none(broken: &[String], what_to_do: &str) {
    assert!(broken.is_empty(), "{what_to_do}\n  {}", broken.join("\n  "));
}

fn rust_files() -> Vec<RustFile> {
    source::rust_files().unwrap()
}

/// Lines of the code that contain a word.
fn lines_with(file: &RustFile, code: &str, word: &str) -> Vec<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .filter(|(at, _)| {
            !code[..*at].chars().next_back().is_some_and(is_part)
                && !code[at + word.len()..].chars().next().is_some_and(is_part)
        })
        .map(|(at, _)| line_of(file, code, at))
        .collect()
}

/// The line number of a byte offset, in the whole file.
fn line_of(file: &RustFile, code: &str, at: usize) -> usize {
    let line = code[..at].matches('\n').count() + 1;
    // `code` lacks the test modules; they are at the end, so earlier line numbers are unaffected.
    line.min(file.text.lines().count())
}

fn at(file: &RustFile, line: usize) -> String {
    format!("{}:{line}", file.path.display())
}

/// Our packages by folder name, each with the names of its non-dev dependencies.
fn members() -> BTreeMap<String, Vec<String>> {
    let metadata = source::cargo_metadata(Depth::Members).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let folder = |name: String| name.strip_prefix(PREFIX).unwrap_or(&name).to_owned();
    let mut members = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let dependencies = package["dependencies"].as_array().unwrap();
        let built_in = dependencies.iter().filter(|dependency| dependency["kind"] != "dev");
        let names = built_in.map(|dependency| match dependency["path"] {
            Value::Null => text(&dependency["name"]),
            _ => format!("ours:{}", folder(text(&dependency["name"]))),
        });
        members.insert(folder(text(&package["name"])), names.collect());
    }
    members
}

#[test]
fn crates_depend_only_on_lower_layers() {
    let table: BTreeMap<&str, &[&str]> = ALLOWED_DEPENDENCIES.into_iter().collect();
    let mut broken = Vec::new();
    for (member, dependencies) in members() {
        if member == "caisson" || member == "bench" {
            continue;
        }
        let Some(allowed) = table.get(member.as_str()) else {
            broken.push(format!("{member} is not in the table"));
            continue;
        };
        let ours = dependencies.iter().filter_map(|name| name.strip_prefix("ours:"));
        broken.extend(
            ours.filter(|name| !allowed.contains(name)).map(|name| format!("{member} imports {name}")),
        );
    }
    assert_none(
        &broken,
        "Move the code to where it may be imported, or change MAY_IMPORT and docs/internals/architecture.md with a reason:",
    );
}

#[test]
fn reserved_dependencies_are_used_only_by_their_crates() {
    let mut broken = Vec::new();
    for (member, dependencies) in members() {
        for (reserved, allowed) in RESTRICTED_DEPENDENCIES {
            if dependencies.iter().any(|name| name == reserved) && !allowed.contains(&member.as_str()) {
                broken.push(format!("{member} depends on {reserved}, only {} may", allowed.join(", ")));
            }
        }
    }
    assert_none(
        &broken,
        "Only server speaks HTTP, only store SQL, anyhow is for programs. Ask that crate instead:",
    );
}

#[test]
fn sql_is_written_only_in_the_store() {
    let mut broken = Vec::new();
    for file in rust_files().iter().filter(|file| !file.path.starts_with("crates/store/src")) {
        broken.extend(lines_with(file, &file.code, "rusqlite").into_iter().map(|line| at(file, line)));
    }
    assert_none(&broken, "Move it into crates/store/src and offer a method:");
}

#[test]
fn routes_of_the_api_are_added_only_with_a_permission() {
    let is_elsewhere = |path: &Path| {
        let inside = path.strip_prefix("crates/server/src");
        // What jobs serve is not part of the API and has its own checks.
        inside.is_ok_and(|path| path != Path::new("router/routes.rs") && !path.starts_with("origins"))
    };
    let mut broken = Vec::new();
    for file in rust_files().iter().filter(|file| is_elsewhere(&file.path)) {
        let code = file.code_without_tests();
        for call in [".route(", ".route_service(", ".nest_service(", ".fallback_service(", "OpenApiRouter"] {
            broken.extend(code.match_indices(call).map(|(place, _)| at(file, line_of(file, &code, place))));
        }
    }
    assert_none(&broken, "Declare it with its permission in crates/server/src/router/table.rs:");
}

#[test]
fn the_environment_is_read_only_by_the_configuration() {
    let is_config = |path: &Path| {
        // A separate program, which runs before there is a server to configure.
        let is_image_builder = path == Path::new("crates/image/src/main.rs");
        is_image_builder || path.starts_with("crates/caisson/src/config")
    };
    let mut broken = Vec::new();
    for file in
        rust_files().iter().filter(|file| file.is_product() && !file.is_test() && !is_config(&file.path))
    {
        let code = file.code_without_tests();
        for word in
            ["env::var", "env::var_os", "env::vars", "env::vars_os", "env::set_var", "env::remove_var"]
        {
            broken.extend(lines_with(file, &code, word).into_iter().map(|line| at(file, line)));
        }
    }
    assert_none(&broken, "Read it in crates/caisson/src/config/ and hand the value down as an argument:");
}

#[test]
fn unsafe_code_is_only_in_files_named_sys() {
    let mut broken = Vec::new();
    for file in rust_files().iter().filter(|file| file.path.file_name().is_none_or(|name| name != "sys.rs")) {
        broken.extend(lines_with(file, &file.code, "unsafe").into_iter().map(|line| at(file, line)));
    }
    assert_none(&broken, "Move it into a sys.rs behind a safe function, or use what rustix offers:");
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    let mut broken = Vec::new();
    for file in rust_files() {
        let lines: Vec<&str> = file.text.lines().collect();
        for line in lines_with(&file, &file.code, "unsafe") {
            let code = file.code.lines().nth(line - 1).unwrap_or_default();
            let is_block = code.contains("unsafe {") || code.contains("unsafe impl");
            // The statement may start a few lines above the block.
            let above = &lines[line.saturating_sub(8)..line];
            if is_block && !above.iter().any(|text| text.contains("// SAFETY:")) {
                broken.push(at(&file, line));
            }
        }
    }
    assert_none(&broken, "Write `// SAFETY:` and the reason on the line above:");
}

#[test]
fn no_file_exceeds_the_line_limit() {
    let files = rust_files();
    let long = files.iter().filter(|file| file.lines_without_tests() > MOST_LINES);
    let broken: Vec<String> =
        long.map(|file| format!("{}: {} lines", file.path.display(), file.lines_without_tests())).collect();
    assert_none(&broken, &format!("Find the seam and split; at most {MOST_LINES} lines, tests not counted:"));
}

#[test]
fn every_file_starts_with_a_module_comment() {
    let files = rust_files();
    let silent = files.iter().filter(|file| !file.text.starts_with("//! "));
    let broken: Vec<String> = silent.map(|file| file.path.display().to_string()).collect();
    assert_none(&broken, "Open the file with `//!`: what it owns and what it leaves to others:");
}

#[test]
fn no_test_is_ignored() {
    let mut broken = Vec::new();
    for file in rust_files() {
        for line in lines_with(&file, &file.code, "#[ignore") {
            broken.push(at(&file, line));
        }
    }
    assert_none(&broken, "Make the test pass, or remove it; what it needs is installed by ./test:");
}

#[test]
fn test_names_are_sentences() {
    let mut broken = Vec::new();
    for file in rust_files() {
        let lines: Vec<&str> = file.code.lines().collect();
        for (index, _) in
            lines.iter().enumerate().filter(|(_, line)| line.trim_start().starts_with("#[test]"))
        {
            let name =
                lines[index..].iter().find_map(|line| line.split_once("fn ")).map_or("", |(_, rest)| rest);
            let name = name.split('(').next().unwrap_or_default();
            if name.split('_').count() < 3 {
                broken.push(format!("{} {name}", at(&file, index + 1)));
            }
        }
    }
    assert_none(&broken, "Say in the name what is promised, such as `a_full_queue_answers_429`:");
}

#[test]
fn names_say_what_a_thing_is() {
    let mut broken = Vec::new();
    for path in source::tracked_files().unwrap() {
        let parts = path
            .iter()
            .map(|part| Path::new(part).file_stem().unwrap_or(part).to_string_lossy().into_owned());
        if parts.into_iter().any(|part| VAGUE_NAMES.contains(&part.as_str())) {
            broken.push(path.display().to_string());
        }
    }
    for file in rust_files() {
        for name in VAGUE_NAMES {
            let lines = lines_with(&file, &file.code, &format!("mod {name}"));
            broken.extend(lines.into_iter().map(|line| format!("{} mod {name}", at(&file, line))));
        }
    }
    assert_none(&broken, "Name the file or module after its main type or verb:");
}

#[test]
fn replaced_names_are_not_used_again() {
    let mut broken = Vec::new();
    let is_word_part = |c: char| c.is_alphanumeric() || c == '_';
    for path in source::tracked_files().unwrap() {
        // The changelog says what replaced what; this file holds the list.
        if path.ends_with("CHANGELOG.md") || path.ends_with("tests/tidy.rs") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(source::root().join(&path)) else { continue };
        for (index, line) in text.lines().enumerate() {
            let words = line.split(|c: char| !is_word_part(c));
            let found = words.filter_map(|word| REPLACED_NAMES.iter().find(|(old, _)| *old == word));
            broken.extend(
                found.map(|(old, new)| format!("{}:{}: `{old}` is now `{new}`", path.display(), index + 1)),
            );
        }
    }
    assert_none(&broken, "Use today's name:");
}

#[test]
fn every_dependency_is_declared_once_at_the_workspace() {
    let read = |path: &Path| -> toml::Table {
        std::fs::read_to_string(source::root().join(path)).unwrap().parse().unwrap()
    };
    let mut used = BTreeSet::new();
    let mut broken = Vec::new();
    let manifests = source::tracked_files().unwrap();
    let manifests = manifests.iter().filter(|path| path.file_name().is_some_and(|name| name == "Cargo.toml"));
    for path in manifests.filter(|path| path.components().count() > 1) {
        let manifest = read(path);
        // A package with its own workspace, such as the fuzz targets, has nowhere else to declare its dependencies.
        if manifest.contains_key("workspace") {
            continue;
        }
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else { continue };
            for (name, entry) in table {
                used.insert(name.clone());
                // A crate may depend on itself to enable features for its own tests.
                let is_itself = entry.get("path").and_then(toml::Value::as_str) == Some(".");
                if !is_itself && entry.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                    broken.push(format!("{}: {name} has a version of its own", path.display()));
                }
            }
        }
    }
    let workspace = read(Path::new("Cargo.toml"));
    let declared = workspace["workspace"]["dependencies"].as_table().unwrap();
    broken.extend(
        declared.keys().filter(|name| !used.contains(*name)).map(|name| format!("nobody uses {name}")),
    );
    assert_none(
        &broken,
        "Declare it in [workspace.dependencies] and write `name.workspace = true`; remove what is unused:",
    );
}

#[test]
fn no_file_contains_paths_of_a_development_machine() {
    // Concatenated here, so that this file does not violate the rule.
    let words = [["/wo", "rk/"].concat(), ["/ro", "ot/"].concat(), [".cargo/regi", "stry"].concat()];
    let mut broken = Vec::new();
    for path in source::tracked_files().unwrap() {
        let Ok(text) = std::fs::read_to_string(source::root().join(&path)) else { continue };
        for (index, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                broken.push(format!("{}:{}", path.display(), index + 1));
            }
        }
    }
    assert_none(&broken, "Write a path that every reader has, or a variable:");
}

#[test]
fn every_script_is_executable_and_stops_at_the_first_error() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut broken = Vec::new();
    for path in source::tracked_files().unwrap() {
        let full = source::root().join(&path);
        let Ok(text) = std::fs::read_to_string(&full) else { continue };
        if !text.starts_with("#!/usr/bin/env bash") {
            continue;
        }
        if !text.contains("set -euo pipefail") {
            broken.push(format!("{}: lacks `set -euo pipefail`", path.display()));
        }
        if std::fs::metadata(&full).unwrap().permissions().mode() & 0o111 == 0 {
            broken.push(format!("{}: lacks chmod +x", path.display()));
        }
    }
    assert_none(&broken, "Fix the script:");
}

/// Every promise in SECURITY.md names the tests that check it, and every test named there or in docs/isolation.md
/// exists. Promises are the rows of tables whose last column is `Tests`.
#[test]
fn every_promise_in_security_md_names_an_existing_test() {
    let read = |path: &str| std::fs::read_to_string(source::root().join(path)).unwrap();
    let (promises, isolation) = (read("SECURITY.md"), read("docs/isolation.md"));
    let code: String = rust_files().iter().map(|file| file.text.as_str()).collect();
    let is_test_name = |name: &&str| {
        name.len() > 20
            && name.contains('_')
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let mut broken = Vec::new();
    for name in [&promises, &isolation].into_iter().flat_map(|text| text.split('`').skip(1).step_by(2)) {
        let is_there =
            code.contains(&format!("fn {name}(")) || code.contains(&format!("    {name}: Misbehavior::"));
        if is_test_name(&name) && !is_there {
            broken.push(format!("there is no test {name}"));
        }
    }
    let (mut is_promise, mut count) = (false, 0);
    for line in promises.lines() {
        let cells = line.strip_prefix("| ").and_then(|line| line.strip_suffix('|'));
        let last = cells.and_then(|cells| cells.rsplit(" | ").next()).map(str::trim);
        match last {
            Some("Tests") => is_promise = true,
            Some(tests) if is_promise => {
                count += 1;
                if !tests.split('`').skip(1).step_by(2).any(|name| is_test_name(&name)) {
                    broken.push(format!("no test holds: {line}"));
                }
            }
            // The separator line below the table's header.
            None if line.starts_with("|---") => {}
            _ => is_promise = false,
        }
    }
    assert!(count >= 30, "{count} promises");
    assert_none(
        &broken,
        "A promise of SECURITY.md names the test that holds it. Write the test, or take the promise back:",
    );
}

#[test]
fn modules_of_a_crate_do_not_import_each_other_in_a_circle() {
    let files = rust_files();
    let mut broken = Vec::new();
    for folder in members().keys() {
        for cycle in ModuleGraph::of_crate(folder, &files).cycles() {
            let named: Vec<&str> = cycle.iter().map(String::as_str).collect();
            broken.push(format!("{folder}: {}", named.join(", ")));
        }
    }
    assert_none(&broken, "Move what both sides need into a module of its own, or let the caller pass it:");
}

#[test]
fn jobs_are_data_without_io() {
    let mut broken = Vec::new();
    for file in rust_files().iter().filter(|file| file.path.starts_with("crates/job/src")) {
        for word in NOT_IN_JOB {
            broken.extend(lines_with(file, &file.code, word).into_iter().map(|line| at(file, line)));
        }
    }
    assert_none(&broken, "`job` has data and pure functions. Do this in orchestrator and pass the result:");
}

#[test]
fn backends_import_nothing_of_each_other() {
    let graph = ModuleGraph::of_crate("sandbox", &rust_files());
    let mut broken = Vec::new();
    for backend in BACKENDS {
        assert!(graph.imports(backend, "host"), "{backend} shares nothing with the others, or is not there");
        let others = BACKENDS.iter().filter(|other| **other != backend && graph.imports(backend, other));
        broken.extend(others.map(|other| format!("{backend} imports {other}")));
    }
    assert_none(&broken, "Move what both need into crates/sandbox/src/host:");
}

#[test]
fn backends_have_the_same_file_for_the_same_method() {
    let files = rust_files();
    let mut broken = Vec::new();
    for backend in BACKENDS {
        for name in BACKEND_FILES {
            let path = format!("crates/sandbox/src/{backend}/{name}.rs");
            if !files.iter().any(|file| file.path == Path::new(&path)) {
                broken.push(path);
            }
        }
    }
    assert_none(&broken, "Name the file of a backend after the method that it implements:");
}
