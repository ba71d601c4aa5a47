//! Reads the file of `caisson run --steps`: a list of steps, or a whole job.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};

/// The job in the file, as sent to the server, which validates it field by field.
pub(crate) fn read(path: &Path) -> Result<Map<String, Value>> {
    let (name, text) = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
        ("standard input".to_owned(), text)
    } else {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        (path.display().to_string(), text)
    };
    parse(&text).with_context(|| format!("in {name}"))
}

fn parse(text: &str) -> Result<Map<String, Value>> {
    let parsed: Value = serde_json::from_str(text)
        .map_err(|error| anyhow!("this is not valid JSON: {}", job::json_syntax_error(&error)))?;
    match parsed {
        steps @ Value::Array(_) => Ok(Map::from_iter([("steps".to_owned(), steps)])),
        Value::Object(job) => Ok(job),
        _ => bail!("expected a list of steps, or a job with `steps`"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_of_steps_becomes_a_job() {
        let parsed = |text| Value::Object(parse(text).unwrap());
        assert_eq!(parsed(r#"[{"tool":"shell"}]"#), json!({"steps": [{"tool": "shell"}]}));
        assert_eq!(parsed(r#"{"task":"x"}"#), json!({"task": "x"}));
        assert!(parse("3").unwrap_err().to_string().contains("list of steps"));
        let syntax = parse("[{\"tool\": \"shell\"").unwrap_err().to_string();
        assert!(syntax.starts_with("this is not valid JSON: it ends inside an object at line 1"), "{syntax}");
    }
}
