//! The schemas of jobs and sandboxes.

use agent::MAX_BUDGET_COUNT;
use job::keywords::{SPACE, command_line, environment, length, not_blank, range};
use job::{LONGEST_S, MAX_LABELS, MAX_STEPS, MAX_TASK_BYTES, SHORTEST_S};
use mcp::NewServer;
use sandbox::{LimitKind, allowed_range};
use serde_json::{Value, json};
use utoipa::PartialSchema;

use crate::intake::schema::schemas::{Schemas, exclude, merge, one_of, only, require};

/// Fields that belong to a job with an agent.
const OF_THE_AGENT: [&str; 8] =
    ["model", "effort", "acceptance", "approve_plan", "approval", "commands", "budget", "mcp"];

pub(super) fn constrain(schemas: &mut Schemas) {
    for request in ["NewJob", "NewSandbox"] {
        schemas.field(request, "name", length(1, 200));
        schemas.field(request, "isolation", json!({ "pattern": "^(?:landlock|namespaces)$" }));
        schemas.field(request, "environment", environment());
        let labels = json!({
            "maxProperties": MAX_LABELS,
            "propertyNames": { "type": "string", "minLength": 1, "maxLength": 63 },
            "additionalProperties": { "type": "string", "maxLength": 255 },
        });
        schemas.field(request, "labels", labels);
    }
    schemas.field("NewSandbox", "ttl_s", range(SHORTEST_S, LONGEST_S));
    schemas.field("NewDesktop", "width", range(320, 3840));
    schemas.field("NewDesktop", "height", range(240, 2160));
    constrain_limits(schemas);
    constrain_agent(schemas);
    constrain_work(schemas);
    constrain_form(schemas);
}

/// A form says in one part what the job is.
fn constrain_form(schemas: &mut Schemas) {
    schemas.replace("TaskText", |_, mut text| {
        merge(&mut text, not_blank());
        text
    });
    schemas.field("JobForm", "task", not_blank());
    let steps = json!({ "type": "array", "items": { "$ref": "#/components/schemas/Step" } });
    let content = |schema| json!({ "contentMediaType": "application/json", "contentSchema": schema });
    schemas.field("JobForm", "job", content(json!({ "$ref": "#/components/schemas/NewJob" })));
    schemas.field("JobForm", "steps", content(steps));
    schemas.replace("JobForm", |_, form| {
        let parts = ["job", "task", "steps"];
        let alternatives = parts.iter().map(|part| {
            let mut form = form.clone();
            require(&mut form, part);
            if let Some(properties) = form["properties"].as_object_mut() {
                properties.retain(|name, _| name == part || !parts.contains(&name.as_str()));
            }
            form["additionalProperties"] = json!(false);
            form
        });
        one_of(&form, alternatives)
    });
}

fn constrain_limits(schemas: &mut Schemas) {
    for (field, kind) in [
        ("memory_mib", LimitKind::Memory),
        ("pids", LimitKind::Pids),
        ("open_files", LimitKind::OpenFiles),
        ("disk_mib", LimitKind::Disk),
    ] {
        let (least, most) = allowed_range(kind);
        schemas.field("NewLimits", field, range(least, most));
    }
    let (least, most) = allowed_range(LimitKind::Cpu);
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    schemas.field("NewLimits", "cpus", range(least as f64 / 1000.0, most as f64 / 1000.0));
    schemas.field("NewLimits", "wall_clock_s", range(SHORTEST_S, LONGEST_S));
    // A sandbox ends by `ttl_s`, so its limits have no wall clock.
    schemas.replace("NewSandbox", |schemas, mut sandbox| {
        let mut limits = schemas.get("NewLimits").cloned().unwrap_or_default();
        exclude(&mut limits, "wall_clock_s");
        if let Some(alternatives) = sandbox["properties"]["limits"]["oneOf"].as_array_mut() {
            limits["description"] = alternatives[0]["description"].take();
            alternatives[0] = limits;
        }
        sandbox
    });
}

fn constrain_agent(schemas: &mut Schemas) {
    let mut model = not_blank();
    model["maxLength"] = json!(300);
    schemas.field("NewJob", "model", model);
    schemas.field("NewJob", "acceptance", json!({ "maxItems": 50, "items": command_line() }));
    schemas.field("Budget", "money_usd", range(0, 1_000_000));
    schemas.field("Budget", "wall_s", range(0, 30 * 24 * 3600));
    for field in ["tokens", "turns", "tool_calls"] {
        schemas.field("Budget", field, range(0, MAX_BUDGET_COUNT));
    }
    schemas.field("CommandRules", "rules", json!({ "maxItems": 500 }));
    schemas.field("CommandRule", "tool", json!({ "minLength": 1, "pattern": r"^[A-Za-z0-9_-]*\*?$" }));
    schemas.replace("CommandRule", |_, rule| {
        let of_a_tool = only(rule.clone(), "tool", &["tool", "prefix"]);
        let mut of_commands = only(rule.clone(), "prefix", &["tool", "prefix"]);
        of_commands["properties"]["prefix"]["minItems"] = json!(1);
        of_commands["properties"]["prefix"]["items"]["minLength"] = json!(1);
        one_of(&rule, [of_commands, of_a_tool].into_iter())
    });
    schemas.field("GitSource", "url", json!({ "maxLength": 2000, "pattern": git_url() }));
    schemas.field("GitSource", "revision", json!({ "maxLength": 2000, "pattern": git_revision() }));
    let servers = json!({
        "maxProperties": 16,
        "propertyNames": { "type": "string", "minLength": 1, "maxLength": 24, "pattern": "^[a-z][a-z0-9-]*$" },
        "additionalProperties": { "oneOf": [{ "type": "boolean" }, mcp_server()] },
    });
    schemas.field("NewJob", "mcp", servers);
}

/// Requires either `task` or `steps`; a job with steps has no agent.
fn constrain_work(schemas: &mut Schemas) {
    let mut task = not_blank();
    task["maxLength"] = json!(MAX_TASK_BYTES);
    schemas.field("NewJob", "task", task);
    schemas.field("NewJob", "steps", json!({ "minItems": 1, "maxItems": MAX_STEPS }));
    schemas.field("NewJob", "priority", range(-100, 100));
    schemas.replace("NewJob", |_, job| {
        let with_task = only(job.clone(), "task", &["task", "steps"]);
        let mut with_steps = only(job.clone(), "steps", &["task", "steps"]);
        OF_THE_AGENT.iter().for_each(|field| exclude(&mut with_steps, field));
        one_of(&job, [with_task, with_steps].into_iter())
    });
}

/// No white space, and no user or password before the host.
fn git_url() -> String {
    format!("^https?://[^@/?#{SPACE}]*(?:[/?#][^{SPACE}]*)?$")
}

fn git_revision() -> String {
    format!("^[^-{SPACE}][^{SPACE}]*$")
}

/// An MCP server of the job's own: a program in the sandbox, or an address outside.
fn mcp_server() -> Value {
    let mut server = serde_json::to_value(NewServer::schema()).unwrap_or_default();
    let mut set = |field: &str, keywords: Value| merge(&mut server["properties"][field], keywords);
    set("tools", json!({ "maxItems": 1000, "items": length(1, 200) }));
    set("start_timeout_s", range(0.1, 3600));
    set("call_timeout_s", range(0.1, 3600));
    set("url", json!({ "pattern": r"^[Hh][Tt][Tt][Pp][Ss]?://[^\x00-\x20@/?#]+(?:[/?#][^\x00-\x20]*)?$" }));
    let word = json!({ "type": "string", "pattern": r"^[^\x00]*$" });
    let mut program = command_line();
    program["type"] = json!("string");
    set("command", json!({ "minItems": 1, "maxItems": 100, "prefixItems": [program], "items": word }));
    let environment = json!({
        "propertyNames": { "type": "string", "minLength": 1, "pattern": r"^[^=\x00]+$" },
        "additionalProperties": { "type": "string", "pattern": r"^[^\x00]*$" },
    });
    set("environment", environment);
    let program = only(server.clone(), "command", &["command", "url"]);
    let mut address = only(server.clone(), "url", &["command", "url"]);
    exclude(&mut address, "environment");
    one_of(&server, [program, address].into_iter())
}
