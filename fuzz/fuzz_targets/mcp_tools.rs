//! Output of an MCP server: tools, schemas, results. Every tool that is passed on has a name that all model providers
//! accept.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

#[allow(dead_code)]
#[path = "../../crates/mcp/src/outcome.rs"]
mod outcome;
#[path = "../../crates/mcp/src/schema/mod.rs"]
mod schema;
#[allow(dead_code)]
#[path = "../../crates/mcp/src/tool_list.rs"]
mod tool_list;

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    let _ = outcome::ToolOutcome::read(&value);
    let listed = value.as_array().cloned().unwrap_or_else(|| vec![value]);
    let list = tool_list::ToolList::read("server", &listed, None);
    let mut names = std::collections::BTreeSet::new();
    for tool in &list.tools {
        let name = &tool.spec.name;
        assert!(!name.is_empty() && name.len() <= 64, "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)), "{name}");
        assert!(names.insert(name.clone()), "{name} is there twice");
    }
});
