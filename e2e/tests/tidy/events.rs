//! The table of event kinds in the reference agrees with the enum and with what the command line, the web page and the
//! agent do with each kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use e2e::markdown::code_spans;
use e2e::source::{self, RustFile};

use super::documentation::{lines_of_enum, read, snake_case};
use super::{assert_none, rust_files};

/// Read once: every struct is searched in all of them.
static FILES: LazyLock<Vec<RustFile>> = LazyLock::new(rust_files);

type FindKinds = fn() -> BTreeSet<String>;

/// Names in the last column of the table, and how to find the kinds that each of them handles.
const READERS: [(&str, FindKinds); 3] =
    [("page", kinds_of_the_page), ("cli", kinds_of_the_command_line), ("agent", kinds_of_the_agent)];

struct Row {
    kind: String,
    data: BTreeSet<String>,
    shown_by: BTreeSet<String>,
}

fn rows() -> Vec<Row> {
    let page = read("docs/reference/events.md").section("Kinds").unwrap();
    let spans = |cell: &str| code_spans(cell).into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let row = |row: &Vec<String>| Row {
        kind: code_spans(&row[0])[0].to_owned(),
        data: spans(&row[2]),
        shown_by: row[3].split(", ").filter(|word| !word.is_empty()).map(str::to_owned).collect(),
    };
    page.rows().iter().map(row).collect()
}

fn text_of(path: &str) -> String {
    std::fs::read_to_string(source::root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The part of `text` between two markers.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let after = text.split(start).nth(1).unwrap_or_else(|| panic!("there is no `{start}`"));
    after.split(end).next().unwrap_or_default()
}

/// The handlers of `fold.ts`.
fn kinds_of_the_page() -> BTreeSet<String> {
    let text = text_of("web/src/lib/fold.ts");
    let handlers = between(&text, "const HANDLERS", "\n};");
    let name = |line: &str| Some(line.strip_prefix("  ")?.split_once('(')?.0.to_owned());
    handlers.lines().filter_map(name).filter(|name| !name.contains(' ')).collect()
}

/// The string literals of `caisson logs` and `watch`; other literals than names of kinds do not matter.
fn kinds_of_the_command_line() -> BTreeSet<String> {
    let folder = "crates/caisson/src/commands/watch/";
    let files = FILES.iter().filter(|file| file.path.starts_with(folder));
    let code = files.map(|file| file.text.split("#[cfg(test)]\nmod ").next().unwrap_or_default());
    // Every piece between two quotation marks: names of kinds contain neither quotation marks nor escapes.
    code.flat_map(|code| code.split('"').map(str::to_owned)).collect()
}

/// What `driver/agent/events.rs` converts.
fn kinds_of_the_agent() -> BTreeSet<String> {
    let text = text_of("crates/orchestrator/src/driver/agent/events.rs");
    let arms = between(&text, "fn logged(", "_ => return None");
    let name =
        |rest: &str| snake_case(rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default(), '_');
    arms.split("EventBody::").skip(1).map(name).collect()
}

/// The names under which the fields of a struct are serialized; `None` for what is no struct.
fn fields_of_struct(name: &str) -> Option<BTreeSet<String>> {
    let start = format!("pub struct {name} {{\n");
    let found =
        FILES.iter().filter(|file| file.is_product()).find_map(|file| file.text.split(&start).nth(1))?;
    Some(fields(found.lines().take_while(|line| *line != "}")))
}

/// The serialized names of fields, one `name: Type,` a line; a flattened struct counts with its fields.
fn fields<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let (mut renamed, mut is_flattened) = (None, false);
    for line in lines.map(str::trim) {
        if line.starts_with("#[serde(") {
            is_flattened = line.contains("flatten");
            renamed = line.split_once("rename = \"").and_then(|(_, rest)| rest.split('"').next());
        } else if let Some((name, of)) = line.split_once(": ").filter(|_| !line.starts_with(['#', '/'])) {
            let name = renamed.take().unwrap_or(name.trim_start_matches("pub "));
            if std::mem::take(&mut is_flattened) {
                names.extend(fields_of_struct(of.trim_end_matches(',')).unwrap());
            } else {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

/// The kinds of events with the names of their data; `None` where the data is an enum.
fn kinds() -> BTreeMap<String, Option<BTreeSet<String>>> {
    let lines = lines_of_enum("crates/job", "EventBody");
    let mut kinds = BTreeMap::new();
    let mut lines = lines.iter().map(String::as_str);
    while let Some(line) = lines.next() {
        let Some(variant) = line.strip_prefix("    ").filter(|line| line.starts_with(char::is_uppercase))
        else {
            continue;
        };
        let (name, data) = if let Some(name) = variant.strip_suffix(" {") {
            (name, Some(fields(lines.by_ref().take_while(|line| *line != "    },"))))
        } else {
            let (name, of) = variant.trim_end_matches("),").split_once('(').unwrap();
            let of = of.trim_start_matches("Box<").trim_end_matches('>');
            (name, fields_of_struct(of.rsplit("::").next().unwrap()))
        };
        kinds.insert(snake_case(name, '_'), data);
    }
    kinds
}

#[test]
fn kinds_and_data_of_events_in_the_reference_are_those_of_the_code() {
    let mut kinds = kinds();
    assert!(kinds.len() > 30, "found only {:?}", kinds.keys());
    let mut broken = Vec::new();
    for row in rows() {
        match kinds.remove(&row.kind) {
            None => broken.push(format!("does not exist: {}", row.kind)),
            Some(Some(data)) if data != row.data => {
                broken.push(format!("{} has the data {data:?}, not {:?}", row.kind, row.data));
            }
            Some(_) => {}
        }
    }
    broken.extend(kinds.keys().map(|kind| format!("not documented: {kind}")));
    assert_none(&broken, "Correct docs/reference/events.md:");
}

#[test]
fn reference_says_who_shows_each_kind_of_event() {
    let mut broken = Vec::new();
    for (reader, kinds_of) in READERS {
        let handled = kinds_of();
        assert!(handled.len() > 10, "{reader} handles only {handled:?}");
        for row in rows() {
            match (handled.contains(&row.kind), row.shown_by.contains(reader)) {
                (true, false) => broken.push(format!("{}: {reader} is missing", row.kind)),
                (false, true) => broken.push(format!("{}: {reader} does not handle it", row.kind)),
                _ => {}
            }
        }
    }
    let known = |name: &String| READERS.iter().any(|(reader, _)| reader == name);
    for row in rows() {
        let unknown = row.shown_by.iter().filter(|name| !known(name));
        broken.extend(unknown.map(|name| format!("{}: no reader is called {name}", row.kind)));
    }
    assert_none(&broken, "Correct the last column in docs/reference/events.md, or handle the event:");
}
