//! Tests: the documentation and the web page name the tools that exist.

use std::collections::BTreeSet;

use context::ToolEffect;

use super::{TOOL_NAMES, tool_effect};

const REFERENCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/jobs.md"));
const GUIDE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/agents.md"));
const FOLD: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/src/lib/fold.ts"));
const KNOWN: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/src/lib/known.ts"));
const CHANGES: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/src/lib/changes.ts"));

type Names = BTreeSet<String>;

/// The words in these quotes: every second part.
fn quoted(text: &str, quote: char) -> Names {
    text.split(quote).skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// The names in the first column of a section's first table.
fn first_column(page: &str, section: &str) -> Names {
    let (_, section) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let rows =
        section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| quoted(row.split('|').nth(1).unwrap(), '`')).collect()
}

/// The members of a set in the web page's code.
fn members(code: &str, name: &str) -> Names {
    let (_, set) = code.split_once(&format!("const {name} = new Set([")).unwrap();
    quoted(set.split(']').next().unwrap(), '\'')
}

fn tools_of_agents() -> Names {
    agent::tools::standard().iter().map(|tool| tool.name().to_owned()).collect()
}

fn all_tools() -> Names {
    TOOL_NAMES.iter().map(|name| (*name).to_owned()).chain(tools_of_agents()).collect()
}

fn with_effect(effect: ToolEffect) -> Names {
    all_tools().into_iter().filter(|name| tool_effect(name) == Some(effect)).collect()
}

#[test]
fn documentation_lists_every_tool() {
    let steps: Names = TOOL_NAMES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(first_column(REFERENCE, "Steps"), steps, "correct docs/reference/jobs.md");
    assert_eq!(first_column(GUIDE, "Tools"), tools_of_agents(), "correct docs/guides/agents.md");
}

#[test]
fn web_page_follows_every_tool_that_logs_what_it_writes() {
    for (code, path) in [(KNOWN, "known.ts"), (CHANGES, "changes.ts")] {
        let named: Names =
            all_tools().into_iter().filter(|name| code.contains(&format!("'{name}'"))).collect();
        assert_eq!(named, with_effect(ToolEffect::LogsWrites), "correct web/src/lib/{path}");
    }
}

#[test]
fn web_page_knows_the_tools_that_act_on_the_screen() {
    let mut screen = with_effect(ToolEffect::Screen);
    screen.insert("screenshot".to_owned());
    assert_eq!(members(FOLD, "ON_SCREEN"), screen, "correct web/src/lib/fold.ts");
    assert!(members(FOLD, "SILENT").is_subset(&tools_of_agents()), "correct web/src/lib/fold.ts");
}
