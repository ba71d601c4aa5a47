//! Finds the job or bare sandbox that a user means: by its whole id, by its name, or by the beginning or end of its id.

use anyhow::{Result, bail};
use reqwest::Method;
use serde_json::Value;

use super::encoding::encode;
use super::http_client::Client;

/// How many characters of an id tables show. They show the end, where ids differ most.
const SHORT: usize = 8;
/// The length of a whole id.
const WHOLE: usize = 36;
/// The longest name that a job or sandbox can have, in characters.
const LONGEST_NAME: usize = 200;
/// The server's page size for jobs.
const PAGE: usize = 1000;
/// How many of several jobs with the same name an error lists.
const LISTED: usize = 5;
/// The states of a job that has ended.
const ENDED: [&str; 3] = ["complete", "failed", "cancelled"];

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

/// Finds a job; returns its id.
pub(crate) async fn job(client: &Client, typed: &str) -> Result<String> {
    let wanted = Wanted::parse(typed)?;
    if let Some(id) = wanted.whole_id() {
        return Ok(id);
    }
    let found = matching_jobs(client, &wanted).await?;
    Ok(wanted.pick("job", "caisson jobs", found)?.id)
}

/// Finds a bare sandbox; returns its id.
pub(crate) async fn sandbox(client: &Client, typed: &str) -> Result<String> {
    let wanted = Wanted::parse(typed)?;
    if let Some(id) = wanted.whole_id() {
        return Ok(id);
    }
    let found = matching_sandboxes(client, &wanted).await?;
    Ok(wanted.pick("sandbox", "caisson sandboxes", found)?.id)
}

/// Finds a job or bare sandbox.
pub(crate) async fn target(client: &Client, typed: &str) -> Result<Target> {
    let wanted = Wanted::parse(typed)?;
    if let Some(id) = wanted.whole_id() {
        let request = client.request(Method::GET, &format!("/v1/sandboxes/{id}"));
        let kind = match client.send_or_missing(request).await? {
            Some(_) => Kind::Sandbox,
            None => Kind::Job,
        };
        return Ok(Target { kind, id });
    }
    let mut found = matching_sandboxes(client, &wanted).await?;
    found.extend(matching_jobs(client, &wanted).await?);
    wanted.pick("job or sandbox", "caisson jobs", found)
}

/// What the user typed.
#[derive(Debug)]
struct Wanted {
    /// A name, exactly as typed.
    name: String,
    /// An id or a part of one; `None` if it cannot be one.
    id: Option<String>,
}

/// A job or sandbox that the user may mean.
#[derive(Debug)]
struct Candidate {
    target: Target,
    state: String,
    has_ended: bool,
    /// Whether its name was typed, rather than a part of its id.
    is_named: bool,
}

impl Wanted {
    fn parse(typed: &str) -> Result<Self> {
        if typed.trim().is_empty() || typed.chars().count() > LONGEST_NAME {
            bail!("`{}` is neither an id nor a name", typed.escape_debug());
        }
        let id = typed.trim().to_ascii_lowercase();
        let is_id = id.len() <= WHOLE && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        Ok(Self { name: typed.to_owned(), id: is_id.then_some(id) })
    }

    /// The id, if a whole one was typed. It needs no search. Only hexadecimal digits and dashes are returned, which
    /// cannot form another URL path.
    fn whole_id(&self) -> Option<String> {
        self.id.clone().filter(|id| id.len() == WHOLE)
    }

    /// Whether an entry of a list may be meant, given the field with its id and its state.
    fn candidate(&self, kind: Kind, entry: &Value) -> Option<Candidate> {
        let (id, state) = match kind {
            Kind::Job => (&entry["job_id"], &entry["state"]),
            Kind::Sandbox => (&entry["sandbox_id"], &entry["status"]),
        };
        let (id, state) = (id.as_str()?, state.as_str().unwrap_or_default());
        let is_named = entry["name"].as_str().is_some_and(|name| name == self.name);
        let has_id = self.id.as_ref().is_some_and(|part| id.starts_with(part) || id.ends_with(part));
        (is_named || has_id).then(|| Candidate {
            target: Target { kind, id: id.to_owned() },
            state: state.to_owned(),
            has_ended: ENDED.contains(&state),
            is_named,
        })
    }

    /// Picks the only candidate, or the only one with this name that has not ended. Never guesses between a name and an
    /// id: others may name their jobs as they like.
    fn pick(&self, what: &str, list: &str, found: Vec<Candidate>) -> Result<Target> {
        let typed = self.name.trim().escape_debug();
        let (mut named, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.is_named);
        if named.iter().filter(|found| !found.has_ended).count() == 1 {
            named.retain(|found| !found.has_ended);
        }
        match (named.as_slice(), others.as_slice()) {
            ([], []) => bail!("no {what} `{typed}`; list them with `{list}`"),
            ([one], []) | ([], [one]) => Ok(one.target.clone()),
            ([], [first, second, ..]) => bail!(
                "`{typed}` matches more than one {what}, such as {} and {}; write more characters",
                first.target.id,
                second.target.id
            ),
            ([_, _, ..], _) => {
                let shown = named.iter().take(LISTED);
                let shown: Vec<String> =
                    shown.map(|found| format!("{} ({})", found.target.id, found.state)).collect();
                let more = match named.len().saturating_sub(LISTED) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                bail!(
                    "`{typed}` is the name of more than one {what}: {}{more}; write the id",
                    shown.join(", ")
                )
            }
            ([one], [other, ..]) => bail!(
                "`{typed}` is the name of {} and part of the id {}; write the whole id",
                one.target.id,
                other.target.id
            ),
        }
    }
}

/// The jobs that may be meant, newest first. The server filters them by name and id, and by other fields.
async fn matching_jobs(client: &Client, wanted: &Wanted) -> Result<Vec<Candidate>> {
    let first = format!("/v1/jobs?limit={PAGE}&search={}", encode(&wanted.name));
    let (mut path, mut found) = (first.clone(), Vec::new());
    loop {
        let page = client.get(&path).await?;
        let jobs = page["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
        found.extend(jobs.iter().filter_map(|job| wanted.candidate(Kind::Job, job)));
        match page["next"].as_str() {
            Some(next) => path = format!("{first}&before={next}"),
            None => return Ok(found),
        }
    }
}

async fn matching_sandboxes(client: &Client, wanted: &Wanted) -> Result<Vec<Candidate>> {
    let running = every_sandbox(client, false).await?;
    Ok(running.iter().filter_map(|sandbox| wanted.candidate(Kind::Sandbox, sandbox)).collect())
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio_tungstenite::tungstenite::http;

    use super::*;

    const FIRST: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
    const SECOND: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4eff";
    const THIRD: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2dbeef";

    /// Picks from jobs, each with its id, name and state.
    fn pick_from(typed: &str, jobs: &[(&str, &str, &str)]) -> Result<String, String> {
        let wanted = Wanted::parse(typed).map_err(|error| error.to_string())?;
        let candidate = |(id, name, state): &(&str, &str, &str)| {
            wanted.candidate(Kind::Job, &json!({"job_id": id, "name": name, "state": state}))
        };
        let found = jobs.iter().filter_map(candidate).collect();
        wanted.pick("job", "caisson jobs", found).map(|target| target.id).map_err(|error| error.to_string())
    }

    fn pick_by_id(typed: &str) -> Result<String, String> {
        pick_from(typed, &[(FIRST, "one", "running"), (SECOND, "two", "failed")])
    }

    #[test]
    fn unique_id_suffix_is_accepted() {
        assert_eq!(pick_by_id("6f").unwrap(), FIRST);
        assert_eq!(pick_by_id(" 1C2D4EFF ").unwrap(), SECOND);
        assert_eq!(pick_by_id(FIRST).unwrap(), FIRST);
        assert_eq!(short(FIRST), "1c2d4e6f");
    }

    #[test]
    fn ambiguous_or_unknown_abbreviation_is_refused() {
        assert!(pick_by_id("0193").unwrap_err().contains("more than one job"));
        assert!(pick_by_id("abc").unwrap_err().contains("no job `abc`"));
    }

    #[test]
    fn exact_name_stands_for_the_id() {
        assert_eq!(pick_by_id("two").unwrap(), SECOND);
        for other in ["tw", "Two", "two "] {
            assert!(pick_by_id(other).unwrap_err().contains("no job"), "{other}");
        }
        let odd = [(FIRST, "Ärger & more/../?", "complete")];
        assert_eq!(pick_from("Ärger & more/../?", &odd).unwrap(), FIRST);
    }

    #[test]
    fn name_of_several_jobs_means_the_only_one_that_has_not_ended() {
        let jobs = |state| {
            [(THIRD, "nightly", "failed"), (SECOND, "nightly", state), (FIRST, "nightly", "complete")]
        };
        for state in ["running", "paused", "queued"] {
            assert_eq!(pick_from("nightly", &jobs(state)).unwrap(), SECOND, "{state}");
        }
        let refused = pick_from("nightly", &jobs("cancelled")).unwrap_err();
        let listed = format!("{THIRD} (failed), {SECOND} (cancelled), {FIRST} (complete); write the id");
        assert!(refused.contains(&listed), "{refused}");
        let both =
            [(SECOND, "nightly", "running"), (FIRST, "nightly", "paused"), (THIRD, "nightly", "failed")];
        assert!(pick_from("nightly", &both).is_err());
        let many = vec![(FIRST, "nightly", "failed"); LISTED + 2];
        assert!(pick_from("nightly", &many).unwrap_err().contains(" and 2 more; "));
    }

    #[test]
    fn name_that_is_also_part_of_another_id_is_refused() {
        let jobs = [(FIRST, "beef", "running"), (THIRD, "other", "running")];
        let refused = pick_from("beef", &jobs).unwrap_err();
        assert!(refused.contains(&format!("name of {FIRST} and part of the id {THIRD}")), "{refused}");
        assert_eq!(pick_from("beef", &jobs[..1]).unwrap(), FIRST);
        assert_eq!(pick_from("beef", &[(THIRD, "beef", "running")]).unwrap(), THIRD);
    }

    /// A client of a server that answers with the result of a function of the path and query.
    fn client(answer: fn(&str) -> Value) -> Client {
        let handle: crate::client::RequestHandler = std::sync::Arc::new(move |request| {
            let url = request.url();
            let asked = format!("{}?{}", url.path(), url.query().unwrap_or_default());
            let body = answer(&asked).to_string();
            Box::pin(async move { Ok(http::Response::new(body).into()) })
        });
        let connect = std::sync::Arc::new(|| tokio::io::duplex(1).0);
        Client::in_process(crate::client::InProcess { handle, connect }).unwrap()
    }

    #[tokio::test]
    async fn sandboxes_of_all_pages_are_found() {
        let client = client(|asked| match asked.contains("before=") {
            false => json!({"sandboxes": [{"sandbox_id": SECOND}], "next": SECOND}),
            true => json!({"sandboxes": [{"sandbox_id": FIRST, "name": "mine"}], "next": null}),
        });
        assert_eq!(every_sandbox(&client, true).await.unwrap().len(), 2);
        assert_eq!(sandbox(&client, "4e6f").await.unwrap(), FIRST);
        assert_eq!(sandbox(&client, "mine").await.unwrap(), FIRST);
    }

    #[tokio::test]
    async fn jobs_are_searched_by_name_on_all_pages() {
        let client = client(|asked| match asked {
            "/v1/jobs?limit=1000&search=a%20job" => json!({"jobs": [], "next": SECOND}),
            "/v1/jobs?limit=1000&search=a%20job&before=01930d5e-7b1a-7c3e-9f00-3a5b1c2d4eff" => {
                json!({"jobs": [{"job_id": FIRST, "name": "a job", "state": "complete"}], "next": null})
            }
            other => json!({"unexpected": other}),
        });
        assert_eq!(job(&client, "a job").await.unwrap(), FIRST);
    }

    #[test]
    fn only_a_whole_id_is_sent_as_part_of_a_path() {
        for typed in ["../healthz", "a/b", "xyz", "6f", &"g".repeat(36), &"a".repeat(37)] {
            assert_eq!(Wanted::parse(typed).unwrap().whole_id(), None, "{typed}");
        }
        assert_eq!(Wanted::parse(&FIRST.to_uppercase()).unwrap().whole_id().as_deref(), Some(FIRST));
        for typed in ["", " ", &"a".repeat(201)] {
            assert!(Wanted::parse(typed).unwrap_err().to_string().contains("neither an id nor a name"));
        }
    }
}
