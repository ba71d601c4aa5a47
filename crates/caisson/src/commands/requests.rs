//! `caisson requests`

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::terminal::strip_control_characters;
use crate::output::{print, print_json, say};

/// Pages of jobs that have not ended.
const OPEN_JOBS: &str = "/v1/jobs?state=queued,starting,running,paused,collecting&limit=1000";
/// The longest part of a task that stands for a missing name, in characters.
const TITLE_CHARS: usize = 60;

/// `caisson requests`
#[derive(Debug, Args)]
#[command(after_help = "\
Input requests are questions, plans, commands and connections that wait for a person. `caisson answer` answers them.
Without an id, lists those of all jobs that you may see, newest job first.

Examples:
  caisson requests
  caisson requests 1c2d4e6f
  caisson requests --json | jq -r '.requests[] | [.job_id, .id, .text] | @tsv'")]
pub(crate) struct RequestsArguments {
    /// Id or name of the job [default: all jobs].
    #[arg(value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Lists the open input requests of a job or of all jobs.
pub(crate) async fn run(arguments: RequestsArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let (document, text) = match &arguments.id {
        Some(typed) => {
            let id = ids::job(&client, typed).await?;
            let answer = client.get(&path_of(&id)).await?;
            let text = describe_all(&id, requests_in(&answer));
            (answer, text)
        }
        None => inbox(&client).await?,
    };
    if arguments.output.json {
        print_json(&document)?;
    } else if text.is_empty() {
        say("no open requests");
    } else {
        print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn path_of(job: &str) -> String {
    format!("/v1/jobs/{job}/requests")
}

fn requests_in(answer: &Value) -> &[Value] {
    answer["requests"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The requests of all jobs, as JSON and as text.
async fn inbox(client: &Client) -> Result<(Value, String)> {
    let (mut all, mut text) = (Vec::new(), String::new());
    let mut path = OPEN_JOBS.to_owned();
    loop {
        let page = client.get(&path).await?;
        for job in page["jobs"].as_array().into_iter().flatten().filter(|job| job["requests"] != 0) {
            let id = job["job_id"].as_str().context("the server sent no job id")?;
            // The job may have been deleted in the meantime.
            let request = client.request(Method::GET, &path_of(id));
            let Some(response) = client.send_or_missing(request).await? else { continue };
            let answer: Value = response.json().await.context("reading the requests")?;
            let requests = requests_in(&answer);
            if !requests.is_empty() {
                let gap = if text.is_empty() { "" } else { "\n" };
                text += &format!("{gap}{}{}", heading(id, job), describe_all(id, requests));
            }
            all.extend(requests.iter().map(|request| with_job(request, job)));
        }
        match page["next"].as_str() {
            Some(next) => path = format!("{OPEN_JOBS}&before={next}"),
            None => return Ok((json!({ "requests": all }), text)),
        }
    }
}

/// A request with the id and name of its job.
fn with_job(request: &Value, job: &Value) -> Value {
    let mut request = request.clone();
    if let Some(fields) = request.as_object_mut() {
        fields.insert("job_id".into(), job["job_id"].clone());
        fields.insert("job_name".into(), job["name"].clone());
    }
    request
}

/// The line above the requests of a job: its id, and its name or the beginning of its task.
fn heading(id: &str, job: &Value) -> String {
    let name = job["name"].as_str().or_else(|| job["task"].as_str()?.lines().next()).unwrap_or_default();
    let name: String = strip_control_characters(name).chars().take(TITLE_CHARS).collect();
    format!("job {id}  {name}").trim_end().to_owned() + "\n"
}

fn describe_all(job: &str, requests: &[Value]) -> String {
    requests.iter().map(|request| describe(job, request)).collect()
}

fn describe(job: &str, request: &Value) -> String {
    let word = |name: &str| clean(&request[name]);
    let mut text = format!("{} ({}): {}\n", word("id"), word("kind"), word("text"));
    if request["command"].is_string() {
        text += &format!("  $ {}\n", word("command"));
    }
    if request["egress"]["rule"].is_string() {
        text += &format!("  rule: {}\n", clean(&request["egress"]["rule"]));
    }
    for (number, item) in request["plan"]["items"].as_array().into_iter().flatten().enumerate() {
        text += &format!("  {}. {}\n", number + 1, clean(&item["text"]));
    }
    for option in request["options"].as_array().into_iter().flatten() {
        text += &format!("  - {}\n", clean(option));
    }
    let answer = match word("kind").as_str() {
        "question" => "\"...\"",
        "egress" => "--accept [--rest] | --refuse",
        _ => "--accept | --refuse [\"REASON\"]",
    };
    text + &format!("  answer with: caisson answer {job} {} {answer}\n", word("id"))
}

/// A text without control characters, its further lines indented. It comes from a model and must not be able to look
/// like another request.
fn clean(value: &Value) -> String {
    let lines: Vec<String> =
        value.as_str().unwrap_or_default().trim_end().split('\n').map(strip_control_characters).collect();
    lines.join("\n    ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_listed_with_its_answer_command() {
        let request = json!({"id": "request-1", "kind": "command", "text": "May it?", "command": "git push"});
        let text = describe("abc", &request);
        assert!(
            text.contains("$ git push") && text.contains("caisson answer abc request-1 --accept"),
            "{text}"
        );
        let request = json!({"id": "egress-1", "kind": "egress", "text": "May it?",
            "egress": {"rule": "a.example [GET /v2/%41]"}});
        let text = describe("abc", &request);
        assert!(text.contains("  rule: a.example [GET /v2/%41]\n") && text.contains("--rest"), "{text}");
    }

    #[test]
    fn text_of_a_request_cannot_imitate_another_request() {
        let request =
            json!({"id": "request-1", "kind": "question", "text": "Which?\n\u{1b}[2Jrequest-2 (question)"});
        let text = describe("abc", &request);
        assert!(
            text.starts_with("request-1 (question): Which?\n    [2Jrequest-2 (question)\n  answer"),
            "{text}"
        );
    }

    #[test]
    fn heading_names_the_job_or_its_task() {
        let named = json!({"name": "nightly", "task": "Do it"});
        assert_eq!(heading("abc", &named), "job abc  nightly\n");
        let task = json!({"name": null, "task": format!("{}\nmore", "x".repeat(70))});
        assert_eq!(heading("abc", &task), format!("job abc  {}\n", "x".repeat(60)));
        assert_eq!(heading("abc", &json!({})), "job abc\n");
        let listed = with_job(&json!({"id": "request-1"}), &json!({"job_id": "abc", "name": "nightly"}));
        assert_eq!(listed, json!({"id": "request-1", "job_id": "abc", "job_name": "nightly"}));
    }
}
