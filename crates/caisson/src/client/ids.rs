//! Resolves ids as users type them: whole, or a unique prefix or suffix.

use anyhow::{Result, bail};
use reqwest::Method;
use serde_json::Value;

use super::http_client::Client;

/// How many characters of an id tables show. They show the end, where ids differ most.
const SHORT: usize = 8;
/// The length of a whole id.
const WHOLE: usize = 36;
/// The server's page size for jobs.
const PAGE: usize = 1000;

/// Things that have a sandbox to work in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Job,
    Sandbox,
}

/// A job or a bare sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) id: String,
}

impl Target {
    /// The URL path of a sub-resource.
    pub(crate) fn path(&self, rest: &str) -> String {
        let collection = match self.kind {
            Kind::Job => "jobs",
            Kind::Sandbox => "sandboxes",
        };
        format!("/v1/{collection}/{}/{rest}", self.id)
    }
}

/// The end of an id, for tables.
pub(crate) fn short(id: &str) -> &str {
    id.get(id.len().saturating_sub(SHORT)..).unwrap_or(id)
}

/// Resolves the id of a job.
pub(crate) async fn job(client: &Client, typed: &str) -> Result<String> {
    let typed = validate(typed)?;
    if typed.len() == WHOLE {
        return Ok(typed);
    }
    pick(&typed, "job", "caisson jobs", matching_jobs(client, &typed).await?)
}

/// Resolves the id of a bare sandbox.
pub(crate) async fn sandbox(client: &Client, typed: &str) -> Result<String> {
    let typed = validate(typed)?;
    if typed.len() == WHOLE {
        return Ok(typed);
    }
    pick(&typed, "sandbox", "caisson sandboxes", matching_sandboxes(client, &typed).await?)
}

/// Resolves the id of a job or bare sandbox.
pub(crate) async fn target(client: &Client, typed: &str) -> Result<Target> {
    let typed = validate(typed)?;
    let sandboxes = if typed.len() == WHOLE {
        let request = client.request(Method::GET, &format!("/v1/sandboxes/{typed}"));
        if client.send_or_missing(request).await?.is_none() {
            return Ok(Target { kind: Kind::Job, id: typed });
        }
        vec![typed.clone()]
    } else {
        matching_sandboxes(client, &typed).await?
    };
    let jobs = if typed.len() == WHOLE { Vec::new() } else { matching_jobs(client, &typed).await? };
    let found = sandboxes.into_iter().map(|id| Target { kind: Kind::Sandbox, id });
    let mut found: Vec<Target> =
        found.chain(jobs.into_iter().map(|id| Target { kind: Kind::Job, id })).collect();
    let ids: Vec<String> = found.iter().map(|target| target.id.clone()).collect();
    let id = pick(&typed, "job or sandbox", "caisson jobs", ids)?;
    found.retain(|target| target.id == id);
    match found.pop() {
        Some(target) => Ok(target),
        None => bail!("there is no job or sandbox `{typed}`"),
    }
}

/// Rejects anything but hexadecimal digits and dashes, which could form another URL path.
fn validate(typed: &str) -> Result<String> {
    let typed = typed.trim().to_ascii_lowercase();
    let is_id = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    if typed.is_empty() || typed.len() > WHOLE || !typed.bytes().all(is_id) {
        bail!("`{}` is not an id, nor the beginning or end of one", typed.escape_debug());
    }
    Ok(typed)
}

fn fits(id: &str, typed: &str) -> bool {
    id.starts_with(typed) || id.ends_with(typed)
}

fn pick(typed: &str, what: &str, list: &str, mut found: Vec<String>) -> Result<String> {
    found.sort();
    found.dedup();
    match found.as_slice() {
        [] => bail!("there is no {what} `{typed}`; `{list}` lists them"),
        [id] => Ok(id.clone()),
        [first, second, ..] => {
            bail!("`{typed}` fits more than one {what}, such as {first} and {second}; type more of it")
        }
    }
}

async fn matching_jobs(client: &Client, typed: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut path = format!("/v1/jobs?limit={PAGE}");
    loop {
        let page = client.get(&path).await?;
        found.extend(ids_of(&page["jobs"], "job_id").filter(|id| fits(id, typed)));
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/jobs?limit={PAGE}&before={next}"),
            None => return Ok(found),
        }
    }
}

async fn matching_sandboxes(client: &Client, typed: &str) -> Result<Vec<String>> {
    let living = Value::Array(every_sandbox(client, false).await?);
    Ok(ids_of(&living, "sandbox_id").filter(|id| fits(id, typed)).collect())
}

/// All running sandboxes, or all, newest first, from all pages of the server.
pub(crate) async fn every_sandbox(client: &Client, all: bool) -> Result<Vec<Value>> {
    let first = format!("/v1/sandboxes?all={all}&limit={PAGE}");
    let (mut path, mut found) = (first.clone(), Vec::new());
    loop {
        let request = client.request(Method::GET, &path);
        let Some(response) = client.send_or_missing(request).await? else { return Ok(found) };
        let mut page: Value = response.json().await?;
        if let Value::Array(sandboxes) = page["sandboxes"].take() {
            found.extend(sandboxes);
        }
        match page["next"].as_str() {
            Some(next) => path = format!("{first}&before={next}"),
            None => return Ok(found),
        }
    }
}

fn ids_of<'a>(list: &'a Value, field: &'a str) -> impl Iterator<Item = String> + 'a {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(move |entry| entry[field].as_str())
        .map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use tokio_tungstenite::tungstenite::http;

    use super::*;

    const FIRST: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
    const SECOND: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4eff";

    fn pick_from(typed: &str) -> Result<String> {
        let all = [FIRST, SECOND].iter().filter(|id| fits(id, typed)).map(|id| (*id).to_owned()).collect();
        pick(typed, "job", "caisson jobs", all)
    }

    #[test]
    fn unique_id_suffix_is_accepted() {
        assert_eq!(pick_from("6f").unwrap(), FIRST);
        assert_eq!(pick_from("1c2d4eff").unwrap(), SECOND);
        assert_eq!(pick_from(FIRST).unwrap(), FIRST);
        assert_eq!(short(FIRST), "1c2d4e6f");
    }

    #[test]
    fn ambiguous_or_unknown_abbreviation_is_refused() {
        assert!(pick_from("0193").unwrap_err().to_string().contains("more than one job"));
        assert!(pick_from("abc").unwrap_err().to_string().contains("there is no job `abc`"));
    }

    #[tokio::test]
    async fn sandboxes_of_all_pages_are_found() {
        let handle: crate::client::RequestHandler = std::sync::Arc::new(|request| {
            let is_first = !request.url().query().unwrap_or_default().contains("before=");
            let page = if is_first {
                serde_json::json!({"sandboxes": [{"sandbox_id": SECOND}], "next": SECOND})
            } else {
                serde_json::json!({"sandboxes": [{"sandbox_id": FIRST}], "next": null})
            };
            Box::pin(async move { Ok(http::Response::new(page.to_string()).into()) })
        });
        let connect = std::sync::Arc::new(|| tokio::io::duplex(1).0);
        let client = Client::in_process(crate::client::InProcess { handle, connect }).unwrap();
        assert_eq!(every_sandbox(&client, true).await.unwrap().len(), 2);
        assert_eq!(sandbox(&client, "4e6f").await.unwrap(), FIRST);
    }

    #[test]
    fn invalid_id_is_never_sent_to_the_server() {
        for typed in ["", "../healthz", "a/b", "xyz", &"a".repeat(40)] {
            assert!(validate(typed).is_err(), "{typed}");
        }
        assert_eq!(validate(" 6F ").unwrap(), "6f");
    }
}
