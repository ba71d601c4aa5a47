//! The OpenAPI document, generated from the routes and the annotations of their handlers.

use utoipa::OpenApi;

use super::table;
use crate::openapi::{add_route, add_security_schemes};
use crate::problem::ProblemAnswer;
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
            nobody. `x-required-permission` says what an \
            operation asks of it: `nothing`; `read` (any role; a submitter its own jobs); `read_server` (viewer, operator, admin); \
            `submit` and `change` (submitter, operator, admin); `admin` (admin).",
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

/// The OpenAPI document. It is deterministic for a version of the server.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    let declared = table::all();
    document.components.get_or_insert_default().schemas.extend(declared.schemas);
    add_security_schemes(&mut document);
    for route in declared.routes {
        if let Some(item) = route.description {
            add_route(&mut document, &route.path, route.access.permission, item);
        }
    }
    document
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
    fn all_schema_references_resolve() {
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
    fn operation_ids_are_unique() {
        let document = document();
        let mut seen = BTreeSet::new();
        for item in document["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values() {
                assert!(seen.insert(operation["operationId"].as_str().unwrap().to_owned()));
            }
        }
    }

    #[test]
    fn openapi_document_is_deterministic() {
        assert_eq!(serde_json::to_string(&openapi()).unwrap(), serde_json::to_string(&openapi()).unwrap());
    }
}
