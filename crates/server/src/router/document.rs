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
        description = "Sandboxes for coding agents. Submit a job, watch it, download the result.\n\n\
            Errors are `application/problem+json` with a stable `code`. The server refuses unknown fields and names them.\n\n\
            A server with API keys requires one: `Authorization: Bearer caisson_...`. A server without keys serves only its own machine \
            and requires none. `x-required-permission` is the permission that an operation requires: `nothing`; `read` (any role; a submitter its own jobs); `read_server` (viewer, operator, admin); \
            `submit` and `change` (submitter, operator, admin); `admin` (admin).",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
        contact()
    ),
    components(schemas(
        ProblemAnswer<'_>, job::JobId, EventFormat, StreamRequest, StreamOrder, StreamNotice, TerminalNotice
    )),
    tags(
        (name = "basic", description = "The basic calls: submit, status, download"),
        (name = "jobs", description = "Jobs"),
        (name = "files", description = "Files of the workspace, while the job runs and afterwards"),
        (name = "sandbox", description = "The sandbox of a running job"),
        (name = "sandboxes", description = "Bare sandboxes: sandboxes without a job"),
        (name = "operations", description = "Operation of the server")
    )
)]
struct Document;

/// The OpenAPI document. It is deterministic for a version of the server.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    let declared = table::all();
    document.components.get_or_insert_default().schemas.extend(declared.schemas);
    orchestrator::constrain_schemas(&mut document.components.get_or_insert_default().schemas);
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

    /// Which routes there are is compared with a table of its own by the end-to-end test of permissions.
    #[test]
    fn every_operation_is_described() {
        let document = document();
        let mut count = 0;
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                count += 1;
                for field in ["summary", "operationId", "tags", "responses"] {
                    assert!(!operation[field].is_null(), "{method} {path} has no {field}");
                }
                for status in ["403", "421", "500"] {
                    let content = &operation["responses"][status]["content"];
                    assert!(content["application/problem+json"].is_object(), "{method} {path} {status}");
                }
            }
        }
        assert!(count > 100, "only {count} operations");
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
