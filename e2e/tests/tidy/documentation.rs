//! Rules for the documentation: links resolve, every page is in the book, and the reference agrees with the code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use e2e::markdown::{Page, broken_links, code_spans};
use e2e::source;
use serde_json::Value;

use super::{assert_none, rust_files};

/// Words in code spans of response descriptions that are not error codes.
const NOT_CODES: [&str; 2] = ["field", "problems"];

/// What surrounds the generated table in the API reference.
const GENERATED: [&str; 2] = ["<!-- generated from ", "<!-- end -->"];

pub(super) fn read(path: &str) -> Page {
    Page::read(&source::root(), Path::new(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
        && (path.starts_with("docs") || path.starts_with("bench") || path.components().count() == 1)
}

/// Every page of the documentation, and the pages at the top of the repository.
fn pages() -> Vec<Page> {
    let files = source::tracked_files().unwrap();
    let root = source::root();
    files.iter().filter(|path| is_page(path)).map(|path| Page::read(&root, path).unwrap()).collect()
}

fn openapi() -> Value {
    let text = std::fs::read_to_string(source::root().join("docs/openapi.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Path, method and description of every operation, sorted by path.
fn operations(document: &Value) -> Vec<(&str, String, &Value)> {
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            operations.push((path.as_str(), method.to_uppercase(), operation));
        }
    }
    operations.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
    operations
}

/// The words in code spans of the first column of a table.
fn first_column(page: &Page) -> BTreeSet<String> {
    page.rows().iter().flat_map(|row| code_spans(&row[0])).map(str::to_owned).collect()
}

/// The lines of the enum `name`, of whichever product file below `folder` defines it.
pub(super) fn lines_of_enum(folder: &str, name: &str) -> Vec<String> {
    let start = format!("pub enum {name} {{");
    let start_in_crate = format!("pub(crate) enum {name} {{");
    let files = rust_files();
    let found =
        files.iter().filter(|file| file.is_product() && file.path.starts_with(folder)).find_map(|file| {
            let after = file.text.split(&start).nth(1).or_else(|| file.text.split(&start_in_crate).nth(1))?;
            Some(after.lines().take_while(|line| *line != "}").map(str::to_owned).collect())
        });
    found.unwrap_or_else(|| panic!("no file in {folder} defines `enum {name}`"))
}

/// The words of a name such as `JobCreated`, in lower case and joined by `separator`.
pub(super) fn snake_case(name: &str, separator: char) -> String {
    let mut text = String::new();
    for (index, letter) in name.char_indices() {
        if letter.is_uppercase() && index > 0 {
            text.push(separator);
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// The variants of an enum, in words joined by `separator`.
fn variants(folder: &str, name: &str, separator: char) -> BTreeSet<String> {
    let lines = lines_of_enum(folder, name);
    let is_variant = |line: &&String| line.starts_with("    ") && line.as_bytes()[4].is_ascii_uppercase();
    let word = |line: &String| -> String {
        let name = line.trim().split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        snake_case(name, separator)
    };
    lines.iter().filter(|line| line.len() > 4).filter(is_variant).map(word).collect()
}

fn differences(expected: &BTreeSet<String>, documented: &BTreeSet<String>) -> Vec<String> {
    let missing = expected.difference(documented).map(|name| format!("not documented: {name}"));
    missing.chain(documented.difference(expected).map(|name| format!("does not exist: {name}"))).collect()
}

#[test]
fn links_and_anchors_in_the_documentation_resolve() {
    let pages = pages();
    let links: usize = pages.iter().map(|page| page.links().len()).sum();
    assert!(pages.len() > 60 && links > 200, "only {} pages with {links} links were found", pages.len());
    let broken: Vec<String> = pages.iter().flat_map(|page| broken_links(&source::root(), page)).collect();
    assert_none(&broken, "Correct the link, or the heading that it names:");
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let summary = read("docs/SUMMARY.md");
    let mut listed = BTreeMap::<PathBuf, usize>::new();
    for link in summary.links() {
        *listed.entry(Path::new("docs").join(link.target)).or_default() += 1;
    }
    let pages = pages();
    let in_book = |page: &&Page| page.path.starts_with("docs") && page.path != summary.path;
    let wrong = |page: &Page| match listed.get(&page.path) {
        Some(1) => None,
        Some(count) => Some(format!("{} is listed {count} times", page.path.display())),
        None => Some(format!("{} is not listed", page.path.display())),
    };
    let broken: Vec<String> = pages.iter().filter(in_book).filter_map(wrong).collect();
    assert_none(&broken, "List the page in docs/SUMMARY.md:");
}

#[test]
fn decision_records_are_numbered_without_gaps() {
    let files = source::tracked_files().unwrap();
    let records: Vec<&PathBuf> = files
        .iter()
        .filter(|path| path.starts_with("docs/decisions") && !path.ends_with("README.md"))
        .collect();
    let mut broken = Vec::new();
    for (index, path) in records.iter().enumerate() {
        let number = index + 1;
        let text = std::fs::read_to_string(source::root().join(path)).unwrap();
        if !path.to_string_lossy().starts_with(&format!("docs/decisions/{number:04}-")) {
            broken.push(format!("{}: expected number {number:04}", path.display()));
        }
        if !text.starts_with(&format!("# {number}. ")) {
            broken.push(format!("{}: the title does not begin with `# {number}. `", path.display()));
        }
        for heading in ["\n## Context\n", "\n## Decision\n", "\n## Consequences\n"] {
            if !text.contains(heading) {
                broken.push(format!("{}: lacks the heading {}", path.display(), heading.trim()));
            }
        }
    }
    assert!(!records.is_empty(), "there are no decision records");
    assert_none(&broken, "Number the records without gaps, each with context, decision and consequences:");
}

/// With `CAISSON_UPDATE_DOCS=1`, writes the table instead of comparing it.
#[test]
fn operations_in_the_api_reference_are_those_of_the_openapi_document() {
    let path = source::root().join("docs/reference/api.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(GENERATED[0]).unwrap();
    let (first_line, rest) = rest.split_once('\n').unwrap();
    let (_, after) = rest.split_once(GENERATED[1]).unwrap();
    let document = openapi();
    let operations = operations(&document);
    let is_same_as_of_jobs = |path: &str, method: &str| {
        path.strip_prefix("/v1/sandboxes/{id}/").is_some_and(|rest| {
            let of_jobs = format!("/v1/jobs/{{id}}/{rest}");
            operations.iter().any(|(path, other, _)| *path == of_jobs && other == method)
        })
    };
    let mut table = String::from("\n| Method | Path | Permission | What it does |\n|---|---|---|---|\n");
    for (path, method, operation) in &operations {
        if is_same_as_of_jobs(path, method) {
            continue;
        }
        let text =
            |key: &str| operation[key].as_str().unwrap_or_else(|| panic!("{method} {path} has no {key}"));
        let (permission, summary) = (text("x-required-permission"), text("summary"));
        table.push_str(&format!("| {method} | `{path}` | `{permission}` | {summary} |\n"));
    }
    let expected = format!("{before}{}{first_line}\n{table}\n{}{after}", GENERATED[0], GENERATED[1]);
    if std::env::var_os("CAISSON_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert_eq!(page, expected, "docs/reference/api.md is stale: run this test with CAISSON_UPDATE_DOCS=1");
}

#[test]
fn error_codes_in_the_reference_are_those_of_the_api_and_the_code() {
    let page = read("docs/reference/error-codes.md");
    let rows = page.section("HTTP errors").unwrap().rows();
    let documented: BTreeSet<(String, String)> = rows
        .iter()
        .flat_map(|row| {
            row[1].split(", ").map(|status| (code_spans(&row[0])[0].to_owned(), status.to_owned()))
        })
        .collect();
    let document = openapi();
    let mut returned = BTreeSet::new();
    for (_, _, operation) in operations(&document) {
        let responses = operation["responses"].as_object().unwrap();
        for (status, response) in responses.iter().filter(|(status, _)| status.starts_with(['4', '5'])) {
            let description = response["description"].as_str().unwrap_or_default();
            let is_code = |word: &&str| {
                !NOT_CODES.contains(word)
                    && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            };
            let codes = code_spans(description).into_iter().filter(is_code);
            returned.extend(codes.map(|code| (code.to_owned(), status.clone())));
        }
    }
    assert!(returned.len() > 40, "only {} codes were found in docs/openapi.json", returned.len());
    let mut broken: Vec<String> = returned
        .difference(&documented)
        .map(|(code, status)| format!("not documented: {code} with status {status}"))
        .collect();
    let code: String =
        rust_files().iter().filter(|file| file.is_product()).map(|file| file.text.as_str()).collect();
    let unknown = first_column(&page).into_iter().filter(|name| !code.contains(&format!("\"{name}\"")));
    broken.extend(unknown.map(|name| format!("does not exist: {name}")));
    assert_none(&broken, "Correct docs/reference/error-codes.md:");
}

#[test]
fn commands_in_the_documentation_are_those_of_the_command_line() {
    let commands = variants("crates/caisson", "Command", '-');
    assert!(commands.contains("serve") && commands.len() > 30, "found {commands:?}");
    let reference = read("docs/reference/cli.md");
    let mut documented = BTreeSet::new();
    for section in ["Jobs", "Agents", "Sandboxes", "Server and host"] {
        let entries = first_column(&reference.section(section).unwrap());
        documented.extend(entries.iter().filter_map(|entry| entry.split(' ').next()).map(str::to_owned));
    }
    // Actions of a command stand after it, in code spans of their own.
    let actions = ["create", "list", "import", "export-head", "actions", "key"];
    documented.retain(|name| !actions.contains(&name.as_str()));
    let mut broken = differences(&commands, &documented);
    for page in pages() {
        for line in page.code_lines() {
            let called = line.split("caisson ").skip(1).filter(|_| {
                line.starts_with("caisson ") || line.contains("$(caisson ") || line.contains("| caisson ")
            });
            let names =
                called.filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '-').next());
            let unknown = names.filter(|name| !name.is_empty() && !name.starts_with('-'));
            let unknown = unknown.filter(|name| !commands.contains(*name));
            broken.extend(unknown.map(|name| format!("{}: no command {name}: {line}", page.path.display())));
        }
    }
    assert_none(&broken, "Correct the documentation:");
}
