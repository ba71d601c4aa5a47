//! The OpenAPI document, generated from the handlers' annotations and the problems that they share.

use std::collections::BTreeMap;

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, OpenApi};

use crate::access::{Permission, SESSION_COOKIE};
use crate::problem::ProblemAnswer;
use crate::router;
use crate::routes::events::EventFormat;
use crate::routes::exec_stream::{StreamNotice, StreamOrder, StreamRequest};
use crate::routes::terminal::TerminalNotice;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Caisson",
        description = "A coding agent's own computer, for one task, sealed. Hand in a job, watch it, get a zip.\n\n\
            Errors are `application/problem+json` with a stable `code`. Unknown fields are refused by name.\n\n\
            A server that has keys asks for one: `Authorization: Bearer caisson_...`; one without, which serves its own machine alone, asks \
            nobody. `x-caisson-needs` says what an \
            operation asks of it: `nothing`; `look` (any role; a submitter at its own); `survey` (viewer, operator, admin); \
            `submit` and `change` (submitter, operator, admin); `govern` (admin).",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
        contact()
    ),
    components(schemas(
        ProblemAnswer<'_>, orchestrator::JobId, EventFormat, StreamRequest, StreamOrder, StreamNotice, TerminalNotice
    )),
    tags(
        (name = "basic", description = "The four basic calls: hand in, ask, ask again, download"),
        (name = "jobs", description = "All about jobs"),
        (name = "files", description = "The workspace of a job; while it runs, and afterwards what was collected"),
        (name = "sandbox", description = "The computer of a job that runs"),
        (name = "sandboxes", description = "Bare sandboxes: computers without a task, with the same ways in"),
        (name = "operations", description = "For who runs the server")
    )
)]
struct Document;

/// The names of the security schemes.
const BY_KEY: &str = "key";
const BY_SESSION: &str = "session";

/// The OpenAPI document. It is deterministic for a version of the server.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    let declared = router::all();
    document.components.get_or_insert_default().schemas.extend(declared.schemas);
    add_ways_in(&mut document);
    for route in declared.routes {
        let Some(mut item) = route.description else { continue };
        for operation in operations(&mut item) {
            add_access(operation, route.access.permission);
            if route.path.starts_with("/v1/sandboxes/{id}/") {
                make_of_sandbox(operation);
            }
            add_common(operation);
        }
        // axum marks a parameter that spans several path segments with a star, which OpenAPI cannot express.
        let path = route.path.replace("{*", "{");
        document.paths.paths.entry(path).or_default().merge_operations(item);
    }
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete].into_iter().flatten()
}

/// Adds the security schemes: programs send a key, the web page a session cookie.
fn add_ways_in(document: &mut utoipa::openapi::OpenApi) {
    let components = document.components.get_or_insert_default();
    let cookie = ApiKey::Cookie(ApiKeyValue::new(SESSION_COOKIE));
    components.add_security_scheme(BY_KEY, SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    components.add_security_scheme(BY_SESSION, SecurityScheme::ApiKey(cookie));
}

/// Documents the permission of an operation and the errors of authentication.
fn add_access(operation: &mut Operation, permission: Permission) {
    let extensions = operation.extensions.get_or_insert_default();
    extensions.insert("x-caisson-needs".to_owned(), permission.name().into());
    if permission == Permission::Nothing {
        return;
    }
    operation.security = Some([BY_KEY, BY_SESSION].map(|way| SecurityRequirement::new(way, [""; 0])).into());
    let no_key = "`key_missing`, `key_unknown`: this server asks for a key";
    add_problem(operation, "401", no_key);
    add_problem(operation, "403", "`role_too_weak`: the key may not do this");
    add_problem(
        operation,
        "429",
        "`too_fast`: the key may not ask so often; `Retry-After` says when to try again",
    );
}

/// Rewrites the description of a route that jobs and sandboxes share to say "sandbox".
fn make_of_sandbox(operation: &mut Operation) {
    operation.tags = Some(vec!["sandboxes".to_owned()]);
    if let Some(id) = operation.operation_id.as_mut().filter(|id| !id.contains("sandbox")) {
        *id = format!("sandbox_{}", id.strip_prefix("job_").unwrap_or(id));
    }
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter
            && parameter.name == "id"
        {
            parameter.description = Some("The sandbox".to_owned());
        }
    }
    if let Some(RefOr::T(response)) = operation.responses.responses.get_mut("404") {
        response.description = response.description.replace("`job_not_found`", "`sandbox_not_found`");
    }
}

/// Adds the problems that every operation can return.
fn add_common(operation: &mut Operation) {
    for (status, description) in [
        (
            "403",
            "`origin_not_allowed`: sent by a web page of another site; `origin_missing`: a cookie without `Origin`",
        ),
        ("421", "`host_not_allowed`: the server is not called by this name"),
        ("500", "`internal_error`, `store_failed`, `io_failed`: the server's fault"),
    ] {
        add_problem(operation, status, description);
    }
}

fn add_problem(operation: &mut Operation, status: &str, description: &str) {
    let responses = &mut operation.responses.responses;
    match responses.get_mut(status) {
        None => {
            responses.insert(status.to_owned(), RefOr::T(problem(description)));
        }
        Some(RefOr::T(response)) => {
            response.description = format!("{}; {description}", response.description);
        }
        Some(RefOr::Ref(_)) => {}
    }
}

fn problem(description: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(description).content("application/problem+json", content).build()
}

/// Declares sets of problems that several operations share.
macro_rules! problems {
    ($($(#[$meta:meta])* $name:ident { $($status:literal: $description:literal),+ $(,)? })+) => {$(
        $(#[$meta])*
        pub(crate) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                BTreeMap::from([$(($status.to_owned(), RefOr::T(problem($description)))),+])
            }
        }
    )+};
}

problems! {
    /// For operations on a kernel.
    KernelProblems {
        "409": "`kernel_not_running`: there is no such kernel, or it was not started yet; `wrong_state`: the job has no sandbox now",
        "422": "`invalid_field`: such a name no kernel has",
    }
    /// For operations on a job.
    JobProblems {
        "400": "`bad_job_id`: not the id of a job; `bad_path`, `bad_sequence`, `invalid_query`: another part is wrong",
        "404": "`job_not_found`; `no_artifact`, `no_file_list`: it has none (yet)",
    }
    /// For operations with a query.
    QueryProblems {
        "400": "`invalid_query`: a parameter is unknown or wrong; `bad_job_id`: not the id of a job; `bad_path`, `bad_sequence`",
    }
    /// For operations with a JSON body.
    BodyProblems {
        "400": "`malformed_json` with line and column; `body_incomplete`; `bad_job_id`; `bad_path`",
        "408": "`body_timeout`: the body did not arrive in time",
        "413": "`body_too_large`",
        "415": "`unsupported_media_type`",
        "422": "`invalid_field`: `field` says which; `limit_unenforceable`, `image_not_found`, ...",
    }
    /// For submitting a job.
    SubmitProblems {
        "400": "`malformed_json` with line and column; `malformed_text`; `malformed_form`; `body_incomplete`; `bad_idempotency_key`; `bad_path`",
        "408": "`body_timeout`: the body did not arrive in time",
        "413": "`body_too_large`",
        "415": "`unsupported_media_type`",
        "422": "`invalid_field`: `field` says which; `idempotency_mismatch`: the key came with another job; `limit_unenforceable`; `unknown_archive`, `broken_archive`: `field` names the part",
        "429": "`queue_full`: `Retry-After` says when to try again",
        "503": "`shutting_down`",
        "507": "`server_disk_full`",
    }
    /// For operations that add to the queue.
    QueueProblems {
        "429": "`queue_full`: `Retry-After` says when to try again",
        "503": "`shutting_down`",
        "507": "`server_disk_full`",
    }
    /// For creating a shared link.
    NewShareProblems {
        "409": "`too_many_shares`: the job has as many links as it may; revoke one",
        "503": "`store_busy`, `store_unavailable`: `Retry-After` says when to try again",
        "507": "`server_disk_full`",
    }
    /// For operations on a shared link.
    ShareProblems {
        "400": "`bad_job_id`: not the id of a job",
        "404": "`share_not_found`: the job has no such link, or it has ended; `job_not_found`",
        "503": "`store_busy`, `store_unavailable`: `Retry-After` says when to try again",
        "507": "`server_disk_full`",
    }
    /// For operations on a sandbox id.
    SandboxIdProblems {
        "400": "`bad_job_id`: not the id of a sandbox",
        "404": "`sandbox_not_found`",
    }
    /// For creating a sandbox.
    CreateSandboxProblems {
        "429": "`too_many_sandboxes`: `Retry-After` says when to try again",
        "503": "`shutting_down`; `backend_unavailable`: the Docker engine does not answer, `Retry-After` says when to try again",
        "507": "`server_disk_full`",
    }
    /// For WebSockets.
    WebSocketProblems {
        "426": "`websocket_required`: the request is not that of a WebSocket",
    }
    /// For connections to ports.
    PortProblems {
        "502": "`port_unreachable`: nothing listens there; `sandbox_unreachable`, `sandbox_failed`",
    }
    /// For operations that require a certain job state.
    StateProblems {
        "409": "`wrong_state`: not possible in the state that the job is in",
    }
    /// For operations that require a running sandbox.
    SandboxProblems {
        "409": "`wrong_state`, `sandbox_not_running`: there is no sandbox (any more); for files also `file_exists`, `is_directory`, `not_directory`, `directory_not_empty`",
        "502": "`sandbox_unreachable`, `sandbox_failed`: the sandbox does not answer",
        "503": "`host_disk_full`, `host_unfit`, `backend_unavailable`, `shutting_down`",
        "507": "`disk_full`: of the job; `server_disk_full`",
    }
    /// For file operations.
    FileProblems {
        "400": "`bad_path`: it has a NUL byte, or it or one of its names is too long; `bad_job_id`, `invalid_query`",
        "403": "`path_outside_workspace`; `permission_denied`",
        "404": "`job_not_found`, `file_not_found`",
        "409": "`wrong_state`: the job has no files (yet); `not_directory`; `not_a_file`: a pipe, socket or device; `link_loop`",
        "413": "`file_too_large`",
        "502": "`sandbox_unreachable`",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    fn document() -> Value {
        serde_json::to_value(openapi()).unwrap()
    }

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    match field.as_str().filter(|_| name == "$ref") {
                        Some(target) => {
                            found.insert(target.to_owned());
                        }
                        None => references(field, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_route_is_in_the_document() {
        let document = document();
        let table = [
            ("/schedule", "post"),
            ("/submit", "post"),
            ("/status/{id}", "get"),
            ("/status", "get"),
            ("/jobs/{id}/output.zip", "get"),
            ("/v1/jobs", "post"),
            ("/v1/jobs", "get"),
            ("/v1/jobs/{id}", "get"),
            ("/v1/jobs/{id}", "delete"),
            ("/v1/jobs/{id}/events", "get"),
            ("/v1/jobs/{id}/start", "post"),
            ("/v1/jobs/{id}/retry", "post"),
            ("/v1/jobs/{id}/cancel", "post"),
            ("/v1/jobs/{id}/log", "get"),
            ("/v1/jobs/{id}/artifacts", "get"),
            ("/v1/jobs/{id}/message", "post"),
            ("/v1/jobs/{id}/pause", "post"),
            ("/v1/jobs/{id}/resume", "post"),
            ("/v1/jobs/{id}/takeover", "post"),
            ("/v1/jobs/{id}/handback", "post"),
            ("/v1/jobs/{id}/requests", "get"),
            ("/v1/jobs/{id}/requests/{request}", "post"),
            ("/v1/jobs/{id}/context", "get"),
            ("/v1/jobs/{id}/exec", "post"),
            ("/v1/jobs/{id}/files", "get"),
            ("/v1/jobs/{id}/files/{path}", "get"),
            ("/v1/jobs/{id}/files/{path}", "put"),
            ("/v1/jobs/{id}/files/{path}", "delete"),
            ("/v1/jobs/{id}/files/{path}", "post"),
            ("/v1/jobs/{id}/exec/stream", "get"),
            ("/v1/jobs/{id}/ports", "get"),
            ("/v1/jobs/{id}/ports/{port}", "get"),
            ("/v1/jobs/{id}/stats", "get"),
            ("/v1/jobs/{id}/terminal", "get"),
            ("/v1/jobs/{id}/code", "post"),
            ("/v1/jobs/{id}/kernels", "get"),
            ("/v1/jobs/{id}/kernels/{name}/interrupt", "post"),
            ("/v1/jobs/{id}/kernels/{name}/restart", "post"),
            ("/v1/jobs/{id}/desktop", "get"),
            ("/v1/jobs/{id}/desktop/state", "get"),
            ("/v1/jobs/{id}/desktop/socket", "get"),
            ("/v1/jobs/{id}/screenshot", "get"),
            ("/v1/jobs/{id}/pictures/{digest}", "get"),
            ("/v1/jobs/{id}/input", "post"),
            ("/v1/jobs/{id}/network", "get"),
            ("/v1/jobs/{id}/start/{path}", "get"),
            ("/v1/sandboxes", "post"),
            ("/v1/sandboxes", "get"),
            ("/v1/sandboxes/{id}", "get"),
            ("/v1/sandboxes/{id}", "delete"),
            ("/v1/sandboxes/{id}/extend", "post"),
            ("/v1/sandboxes/{id}/events", "get"),
            ("/v1/sandboxes/{id}/exec", "post"),
            ("/v1/sandboxes/{id}/exec/stream", "get"),
            ("/v1/sandboxes/{id}/ports", "get"),
            ("/v1/sandboxes/{id}/ports/{port}", "get"),
            ("/v1/sandboxes/{id}/stats", "get"),
            ("/v1/sandboxes/{id}/terminal", "get"),
            ("/v1/sandboxes/{id}/code", "post"),
            ("/v1/sandboxes/{id}/kernels", "get"),
            ("/v1/sandboxes/{id}/kernels/{name}/interrupt", "post"),
            ("/v1/sandboxes/{id}/kernels/{name}/restart", "post"),
            ("/v1/sandboxes/{id}/desktop", "get"),
            ("/v1/sandboxes/{id}/desktop/state", "get"),
            ("/v1/sandboxes/{id}/desktop/socket", "get"),
            ("/v1/sandboxes/{id}/screenshot", "get"),
            ("/v1/sandboxes/{id}/pictures/{digest}", "get"),
            ("/v1/sandboxes/{id}/input", "post"),
            ("/v1/sandboxes/{id}/files", "get"),
            ("/v1/sandboxes/{id}/files/{path}", "get"),
            ("/v1/sandboxes/{id}/files/{path}", "put"),
            ("/v1/sandboxes/{id}/files/{path}", "delete"),
            ("/v1/sandboxes/{id}/files/{path}", "post"),
            ("/v1/sandboxes/{id}/network", "get"),
            ("/v1/models", "get"),
            ("/v1/images", "get"),
            ("/v1/doctor", "get"),
            ("/v1/defaults", "get"),
            ("/v1/demo", "post"),
            ("/v1/usage", "get"),
            ("/v1/keys", "post"),
            ("/v1/keys", "get"),
            ("/v1/keys/{name}", "delete"),
            ("/v1/jobs/{id}/audit", "get"),
            ("/v1/jobs/{id}/audit/heads", "get"),
            ("/v1/jobs/{id}/audit/files", "get"),
            ("/v1/sandboxes/{id}/audit", "get"),
            ("/v1/sandboxes/{id}/audit/heads", "get"),
            ("/v1/sandboxes/{id}/audit/files", "get"),
            ("/v1/access-log", "get"),
            ("/v1/login", "get"),
            ("/v1/login/callback", "get"),
            ("/share/{link}", "get"),
            ("/v1/jobs/{id}/shares", "get"),
            ("/v1/jobs/{id}/shares", "post"),
            ("/v1/jobs/{id}/shares/{share}", "delete"),
            ("/v1/sandboxes/{id}/shares", "get"),
            ("/v1/sandboxes/{id}/shares", "post"),
            ("/v1/sandboxes/{id}/shares/{share}", "delete"),
            ("/v1/session", "get"),
            ("/v1/session", "post"),
            ("/v1/session", "delete"),
            ("/metrics", "get"),
            ("/healthz", "get"),
            ("/readyz", "get"),
            ("/openapi.json", "get"),
            ("/docs", "get"),
            ("/", "get"),
        ];
        let mut count = 0;
        for item in document["paths"].as_object().unwrap().values() {
            count += item.as_object().unwrap().len();
        }
        assert_eq!(count, table.len());
        for (path, method) in table {
            let operation = &document["paths"][path][method];
            assert!(operation.is_object(), "{method} {path}");
            for field in ["summary", "operationId", "tags", "responses"] {
                assert!(!operation[field].is_null(), "{method} {path} has no {field}");
            }
            for status in ["403", "421", "500"] {
                let content = &operation["responses"][status]["content"];
                assert!(content["application/problem+json"].is_object(), "{method} {path} {status}");
            }
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.contains("#/components/schemas/Problem"));
        for target in found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target} leads nowhere");
        }
    }

    #[test]
    fn path_parameters_match_the_path() {
        let document = document();
        for (path, item) in document["paths"].as_object().unwrap() {
            let named: BTreeSet<&str> =
                path.split('{').skip(1).filter_map(|part| part.split('}').next()).collect();
            for (method, operation) in item.as_object().unwrap() {
                let declared: BTreeSet<&str> = operation["parameters"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter(|parameter| parameter["in"] == "path")
                    .map(|parameter| parameter["name"].as_str().unwrap())
                    .collect();
                assert_eq!(named, declared, "{method} {path}");
            }
        }
    }

    #[test]
    fn names_of_operations_are_unique() {
        let document = document();
        let mut seen = BTreeSet::new();
        for item in document["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values() {
                assert!(seen.insert(operation["operationId"].as_str().unwrap().to_owned()));
            }
        }
    }

    #[test]
    fn the_document_is_always_the_same() {
        assert_eq!(serde_json::to_string(&openapi()).unwrap(), serde_json::to_string(&openapi()).unwrap());
    }
}
