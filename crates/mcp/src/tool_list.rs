//! The tools of a server as an agent sees them: named after the server, validated, and filtered by the allowed tools.

use std::collections::BTreeSet;

use model::ToolSpec;
use serde_json::Value;

use crate::schema::{self, Checked};

/// The longest name that every provider accepts.
const MAX_NAME_LENGTH: usize = 64;
/// The maximum length of a description in characters.
const MAX_DESCRIPTION_LENGTH: usize = 2000;
/// The maximum length of the note about a rewritten schema in characters.
const MAX_NOTE_LENGTH: usize = 600;

#[derive(Debug, Clone, PartialEq)]
pub struct ListedTool {
    /// The server's name for the tool.
    pub name: String,
    /// The definition for the model.
    pub spec: ToolSpec,
    /// Whether the server declares the tool read-only.
    pub is_read_only: bool,
}

/// The tools of a server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolList {
    /// The usable tools.
    pub tools: Vec<ListedTool>,
    /// Why other tools are unusable.
    pub left_out: Vec<String>,
}

impl ToolList {
    /// Parses a tool list as received. Skips malformed tools without affecting the others.
    #[must_use]
    pub fn read(server: &str, listed: &[Value], allowed: Option<&[String]>) -> Self {
        let mut offer = Self::default();
        let mut taken = BTreeSet::new();
        for tool in listed {
            let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
                offer.left_out.push("a tool without a name".into());
                continue;
            };
            if allowed.is_some_and(|allowed| !allowed.iter().any(|allowed| allowed == name)) {
                continue;
            }
            match schema::checked(tool.get("inputSchema")) {
                Err(why) => offer.left_out.push(format!("the tool `{}`: {why}", shown(name))),
                Ok(Checked { schema, note }) => {
                    let public = unique_name(&public_name(server, name), &mut taken);
                    let description = description(server, tool, note.as_deref());
                    let spec = ToolSpec { name: public, description, input_schema: schema };
                    let is_read_only = tool["annotations"]["readOnlyHint"] == Value::Bool(true);
                    offer.tools.push(ListedTool { name: name.to_owned(), spec, is_read_only });
                }
            }
        }
        for missing in allowed.unwrap_or_default() {
            if !listed.iter().any(|tool| tool["name"] == **missing) {
                offer
                    .left_out
                    .push(format!("the tool `{}`: the server has none of this name", shown(missing)));
            }
        }
        offer
    }
}

fn description(server: &str, tool: &Value, note: Option<&str>) -> String {
    let words = [&tool["description"], &tool["title"], &tool["annotations"]["title"]];
    let text = words.iter().find_map(|text| text.as_str()).map(str::trim).filter(|text| !text.is_empty());
    let mut description = match text {
        Some(text) => text.chars().take(MAX_DESCRIPTION_LENGTH).collect(),
        None => format!("A tool of the MCP server {server}."),
    };
    if let Some(note) = note {
        description.push('\n');
        description.extend(note.chars().take(MAX_NOTE_LENGTH));
    }
    description
}

/// The name under which the model calls a tool: `server__tool`, limited to characters that every provider accepts.
#[must_use]
pub fn public_name(server: &str, tool: &str) -> String {
    let clean = |letter: char| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' };
    let name: String = server.chars().chain("__".chars()).chain(tool.chars().map(clean)).collect();
    name.chars().take(MAX_NAME_LENGTH).collect()
}

/// Appends a number if another tool has the same name after replacing characters.
fn unique_name(name: &str, taken: &mut BTreeSet<String>) -> String {
    let numbered = (2_u32..).map(|number| {
        let end = format!("_{number}");
        let kept: String = name.chars().take(MAX_NAME_LENGTH - end.len()).collect();
        kept + &end
    });
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    let free = names.find(|name| !taken.contains(name)).unwrap_or_else(|| name.to_owned());
    taken.insert(free.clone());
    free
}

/// Escapes and shortens an untrusted name for a line of text.
fn shown(name: &str) -> String {
    name.chars().take(80).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_get_unique_names_prefixed_by_their_server() {
        let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
        let long = "x".repeat(80);
        let listed = [tool("get"), tool("a.b"), tool("a b"), tool(&long), tool(&format!("{long}y"))];
        let offer = ToolList::read("hub", &listed, None);
        let names: Vec<&str> = offer.tools.iter().map(|tool| tool.spec.name.as_str()).collect();
        assert_eq!(&names[..3], ["hub__get", "hub__a_b", "hub__a_b_2"]);
        assert!(names[3].len() == 64 && names[4].len() == 64 && names[3] != names[4]);
        assert_eq!(offer.tools[1].name, "a.b");
    }

    #[test]
    fn a_malformed_tool_does_not_affect_the_others() {
        let listed = [
            json!({"name": "good", "description": " Does it. ", "annotations": {"readOnlyHint": true},
                "inputSchema": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}}),
            json!({"name": "bad", "inputSchema": 5}),
            json!({"title": "no name"}),
            json!({"name": "not-allowed"}),
        ];
        let allowed = ["good".to_owned(), "bad".to_owned(), "gone".to_owned()];
        let offer = ToolList::read("s", &listed, Some(&allowed));
        assert_eq!(offer.tools.len(), 1);
        assert_eq!(
            (offer.tools[0].spec.description.as_str(), offer.tools[0].is_read_only),
            ("Does it.\nArguments that belong together: `a`; `b`.", true)
        );
        assert_eq!(
            offer.left_out,
            [
                "the tool `bad`: its schema is no JSON object",
                "a tool without a name",
                "the tool `gone`: the server has none of this name"
            ]
        );
    }
}
