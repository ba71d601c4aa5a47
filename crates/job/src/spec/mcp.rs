//! Validates the MCP servers of a job: those from the configuration, and its own.

use std::collections::BTreeMap;

use mcp::{Configured, NewServer, ServerChoice, check_name};
use serde_json::Value;

use crate::invalid::{InvalidField, invalid};
use crate::json::read;
use crate::spec::Work;

const MOST_SERVERS: usize = 16;

/// Validates a job's `mcp` field: `true` or `false` for a server from the configuration, or a definition of its own.
pub fn check_mcp(
    asked: BTreeMap<String, Value>,
    work: &Work,
    configured: &BTreeMap<String, Configured>,
) -> Result<BTreeMap<String, ServerChoice>, InvalidField> {
    if !matches!(work, Work::Task(_)) {
        return match asked.is_empty() {
            true => Ok(BTreeMap::new()),
            false => Err(invalid("mcp", "belongs to a job with `task`; steps have no agent")),
        };
    }
    let mut servers: BTreeMap<String, ServerChoice> = configured
        .iter()
        .filter(|(_, server)| server.is_default)
        .map(|(name, _)| (name.clone(), ServerChoice::Configured))
        .collect();
    for (name, choice) in asked {
        check_name(&name).map_err(|problem| invalid("mcp", problem))?;
        let field = format!("mcp.{name}");
        match choice {
            Value::Bool(_) if !configured.contains_key(&name) => {
                let names: Vec<&str> = configured.keys().map(String::as_str).collect();
                let known = if names.is_empty() { "none".into() } else { names.join(", ") };
                return Err(invalid(
                    field,
                    format!(
                        "the configuration has no such server (it has: {known}); describe it with `command` or `url`"
                    ),
                ));
            }
            Value::Bool(true) => drop(servers.insert(name, ServerChoice::Configured)),
            Value::Bool(false) => drop(servers.remove(&name)),
            Value::Object(map) if map.contains_key("headers") => {
                return Err(invalid(
                    format!("{field}.headers"),
                    format!(
                        "a job is stored and shown, so it cannot hold keys; describe the server in the \
                         configuration, [mcp.{name}]"
                    ),
                ));
            }
            choice => {
                let server: NewServer = read(choice).map_err(|error| error.below(&field))?;
                let server = server
                    .check()
                    .map_err(|error| invalid(format!("{field}.{}", error.field), error.problem))?;
                servers.insert(name, ServerChoice::Own(Box::new(server)));
            }
        }
    }
    if servers.len() > MOST_SERVERS {
        return Err(invalid(
            "mcp",
            format!("has {} servers, at most {MOST_SERVERS} are allowed", servers.len()),
        ));
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use crate::spec::{JobDefaults, NewJob};

    use super::*;

    fn defaults() -> JobDefaults {
        let server = |url: &str, is_default| {
            let server = NewServer { url: Some(url.into()), ..NewServer::default() }.check().unwrap();
            Configured::new(server, Vec::new(), is_default).unwrap()
        };
        let mcp = BTreeMap::from([
            ("everywhere".to_owned(), server("https://a/", true)),
            ("named".to_owned(), server("https://b/", false)),
        ]);
        JobDefaults { mcp, ..JobDefaults::default() }
    }

    fn check(mcp: &str) -> Result<Vec<String>, String> {
        let job: NewJob = serde_json::from_str(&format!(r#"{{"task":"x","mcp":{mcp}}}"#)).unwrap();
        let spec = job.check(&defaults()).map_err(|error| error.to_string())?;
        Ok(spec.mcp.into_keys().collect())
    }

    #[test]
    fn job_can_enable_disable_and_add_mcp_servers() {
        assert_eq!(check("{}").unwrap(), ["everywhere"]);
        assert_eq!(check(r#"{"everywhere":false,"named":true}"#).unwrap(), ["named"]);
        assert_eq!(check(r#"{"own":{"command":["a"]}}"#).unwrap(), ["everywhere", "own"]);
    }

    #[test]
    fn bad_servers_are_refused_by_name() {
        for (mcp, words) in [
            (
                r#"{"other":true}"#,
                "mcp.other: the configuration has no such server (it has: everywhere, named)",
            ),
            (r#"{"own":{}}"#, "mcp.own.command: is missing"),
            (r#"{"own":{"url":"x"}}"#, "mcp.own.url:"),
            (r#"{"own":{"comand":["a"]}}"#, "mcp.own.comand: unknown field; did you mean `command`?"),
            (r#"{"own":"text"}"#, "mcp.own: must be an object, not the string \"text\""),
            (r#"{"own":["x"]}"#, "mcp.own"),
            (r#"{"own":{"command":"a"}}"#, "mcp.own.command: must be a list, not the string \"a\""),
            (r#"{"own":{"url":"https://a/","headers":{"A":"b"}}}"#, "mcp.own.headers: a job is stored"),
            (r#"{"Bad Name":true}"#, "mcp: `Bad Name` is no name"),
        ] {
            let told = check(mcp).unwrap_err();
            assert!(told.starts_with(words), "{mcp}: {told}");
        }
    }

    #[test]
    fn steps_have_no_servers() {
        let steps = r#"{"steps":[{"tool":"shell","command":"ls"}]"#;
        let job: NewJob = serde_json::from_str(&format!(r#"{steps},"mcp":{{"named":true}}}}"#)).unwrap();
        assert!(
            job.check(&defaults()).unwrap_err().to_string().starts_with("mcp: belongs to a job with `task`")
        );
        let job: NewJob = serde_json::from_str(&format!("{steps}}}")).unwrap();
        assert!(job.check(&defaults()).unwrap().mcp.is_empty());
    }
}
