//! `http_request`: sends an HTTP request from inside the sandbox, so the job's egress policy applies.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::Program;
use schemars::JsonSchema;
use serde::Deserialize;

use super::process_result;
use crate::event::{ToolEnd, ToolStatus};
use crate::host::{Capability, ExecStart, ProcessRequest, Stopped};
use crate::tools::data_header::data_header;
use crate::tools::{CallContext, Tool, ToolFlow, ToolRole};

const TIMEOUT_S: u64 = 60;
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

pub(super) struct HttpRequest;

/// What to ask.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The address; http://localhost:PORT reaches servers that run in the sandbox.
    url: String,
    /// GET when absent.
    #[serde(default)]
    method: Option<String>,
    /// Further headers.
    #[serde(default)]
    headers: Option<BTreeMap<String, String>>,
    /// What to send.
    #[serde(default)]
    body: Option<String>,
}

impl Tool for HttpRequest {
    const NAME: &'static str = "http_request";
    const DESCRIPTION: &'static str = "Sends an HTTP request from inside the sandbox and shows status, headers and \
        body. What is outside can be reached as far as the network rules of the job allow.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        other_names: &["fetch", "curl", "http", "webfetch", "request", "wget"],
        ..ToolRole::OPTIONAL
    };

    fn needs(&self) -> &'static [Capability] {
        &[Capability::Curl]
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let method = input.method.as_deref().unwrap_or("GET").to_uppercase();
        let refuse = |text: String| Ok(ToolEnd::malformed(format!("http_request: {text}")).into());
        if !METHODS.contains(&method.as_str()) {
            return refuse(format!("`{method}` is not one of {}", METHODS.join(", ")));
        }
        if !input.url.starts_with("http://") && !input.url.starts_with("https://") {
            return refuse(format!("`{}` does not begin with http:// or https://", input.url));
        }
        let mut arguments: Vec<String> = [
            "curl",
            "--silent",
            "--show-error",
            "--include",
            // Treat brackets and braces in the URL literally.
            "--globoff",
            "--location",
            "--max-redirs",
            "5",
            "--max-time",
        ]
        .map(ToOwned::to_owned)
        .into();
        arguments.push(TIMEOUT_S.to_string());
        if method == "HEAD" {
            arguments.push("--head".into());
        } else {
            arguments.extend(["--request".to_owned(), method]);
        }
        for (name, value) in input.headers.unwrap_or_default() {
            if name.contains(['\r', '\n', ':']) || value.contains(['\r', '\n']) {
                return refuse(format!("the header `{}` cannot be sent", name.escape_debug()));
            }
            arguments.extend(["--header".to_owned(), format!("{name}: {value}")]);
        }
        if input.body.is_some() {
            arguments.extend(["--data-binary".to_owned(), "@-".to_owned()]);
        }
        arguments.extend(["--".to_owned(), input.url.clone()]);
        let start = ExecStart {
            stdin: input.body,
            timeout: Some(Duration::from_secs(TIMEOUT_S + 5)),
            ..ExecStart::program(Program::Arguments(arguments))
        };
        let request = ProcessRequest {
            call: call.id.to_owned(),
            key: call.key(),
            start: Some(start),
            from_chunk: 0,
            wait: Duration::from_secs(TIMEOUT_S + 10),
        };
        let report = call.host.execute(request).await?;
        let mut end = process_result(report, call.id, &input.url, call);
        if end.status == ToolStatus::Done {
            end.text.insert_str(0, &data_header(&input.url));
        }
        Ok(end.into())
    }
}
