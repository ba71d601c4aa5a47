//! The sections `[mcp.NAME]`: MCP servers with additional tools for agents. Keys come from the environment or from a
//! file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};
use mcp::{Configured, Headers, NewServer, check_name};
use model::Secret;
use serde::Deserialize;

use super::environment::variable;

/// All servers, by name.
pub(crate) type RawServers = BTreeMap<String, RawServer>;

/// One section.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawServer {
    command: Option<Vec<String>>,
    environment: BTreeMap<String, String>,
    url: Option<String>,
    headers: BTreeMap<String, String>,
    header_files: BTreeMap<String, PathBuf>,
    tools: Option<Vec<String>>,
    start_timeout_s: Option<f64>,
    call_timeout_s: Option<f64>,
    jobs: RawJobs,
}

/// Which jobs can use a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawJobs {
    /// All task jobs.
    #[default]
    All,
    /// Jobs that name the server.
    Named,
}

/// Checks the sections.
pub(crate) fn servers(raw: RawServers) -> Result<BTreeMap<String, Configured>> {
    raw.into_iter()
        .map(|(name, raw)| {
            check_name(&name).map_err(|problem| anyhow!("mcp: {problem}"))?;
            let server = server(raw, &name)?;
            Ok((name, server))
        })
        .collect()
}

fn server(raw: RawServer, name: &str) -> Result<Configured> {
    let headers = read_headers(&raw, name)?;
    let server = NewServer {
        command: raw.command,
        environment: raw.environment,
        url: raw.url,
        tools: raw.tools,
        start_timeout_s: raw.start_timeout_s,
        call_timeout_s: raw.call_timeout_s,
    };
    let bad = |error: mcp::InvalidServer| anyhow!("mcp.{name}.{}: {}", error.field, error.problem);
    let server = server.check().map_err(bad)?;
    Configured::new(server, headers, raw.jobs == RawJobs::All).map_err(bad)
}

fn read_headers(raw: &RawServer, name: &str) -> Result<Headers> {
    let mut headers = Headers::new();
    for (header, value) in &raw.headers {
        let value = expand_variables(value).with_context(|| format!("mcp.{name}.headers.{header}"))?;
        headers.push((header.clone(), Secret::new(&value)));
    }
    for (header, file) in &raw.header_files {
        let key = format!("mcp.{name}.header_files.{header}");
        ensure!(!raw.headers.contains_key(header), "{key}: is also in `headers`");
        let value =
            std::fs::read_to_string(file).with_context(|| format!("{key}: reading {}", file.display()))?;
        ensure!(!value.trim().is_empty(), "{key}: {} is empty", file.display());
        headers.push((header.clone(), Secret::new(&value)));
    }
    Ok(headers)
}

/// Expands `${VARIABLE}` in a value from the environment.
fn expand_variables(value: &str) -> Result<String> {
    let mut text = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, after)) = after.split_once('}') else { bail!("`${{` has no closing `}}`") };
        let Some(found) = variable(name) else { bail!("the environment variable {name} is not set") };
        text += before;
        text += &found;
        rest = after;
    }
    Ok(text + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        mcp: RawServers,
    }

    fn read(text: &str) -> Result<BTreeMap<String, Configured>> {
        servers(toml::from_str::<File>(text)?.mcp)
    }

    #[test]
    fn mcp_key_from_environment_or_file_is_not_printed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, "Bearer in-a-file\n").unwrap();
        let text = format!(
            "[mcp.hub]\nurl = \"https://x/mcp\"\njobs = \"named\"\nheaders = {{ X-Home = \"at ${{HOME}}\" }}\n\
             header_files = {{ Authorization = {file:?} }}"
        );
        let servers = read(&text).unwrap();
        let hub = &servers["hub"];
        assert!(!hub.is_default && hub.headers.len() == 2);
        assert_eq!(hub.headers[0].1, Secret::new(&format!("at {}", variable("HOME").unwrap())));
        assert!(!format!("{hub:?}").contains("in-a-file"));
    }

    #[test]
    fn wrong_sections_are_refused_by_name() {
        for (text, words) in [
            ("[mcp.hub]", "mcp.hub.command: is missing"),
            ("[mcp.Hub]\nurl = \"https://x\"", "mcp: `Hub` is no name"),
            ("[mcp.hub]\nurl = \"x\"", "mcp.hub.url: `x` is no http"),
            ("[mcp.hub]\nurl = \"https://x\"\ntoken = \"t\"", "unknown field `token`"),
            ("[mcp.hub]\ncommand = [\"a\"]\nheaders = { A = \"b\" }", "mcp.hub.headers: belongs to"),
            (
                "[mcp.hub]\nurl = \"https://x\"\nheaders = { A = \"${NOT_THERE_AT_ALL}\" }",
                "mcp.hub.headers.A: the environment variable NOT_THERE_AT_ALL is not set",
            ),
            (
                "[mcp.hub]\nurl = \"https://x\"\nheader_files = { A = \"/does/not/exist\" }",
                "mcp.hub.header_files.A: reading /does/not/exist",
            ),
            ("[mcp.hub]\nurl = \"https://x\"\njobs = \"some\"", "unknown variant `some`"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
