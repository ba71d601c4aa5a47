//! The constraints of requests that a derived schema cannot express, for the OpenAPI document.

mod call;
mod egress;
mod new_job;
mod schemas;
mod step;

use std::collections::BTreeMap;

use utoipa::openapi::{RefOr, Schema};

use schemas::Schemas;

/// Adds the constraints of requests to the derived schemas: ranges, lengths, patterns, and fields that exclude each
/// other.
pub fn constrain_schemas(derived: &mut BTreeMap<String, RefOr<Schema>>) {
    let mut schemas = Schemas::new(derived);
    constrain(&mut schemas);
    schemas.write_to(derived);
}

fn constrain(schemas: &mut Schemas) {
    egress::constrain(schemas);
    // Splits a job into alternatives, so nothing can be added to its fields afterwards.
    new_job::constrain(schemas);
    step::constrain(schemas);
    call::constrain(schemas);
    schemas.limit_integers();
}

#[cfg(test)]
mod tests {
    use utoipa::ToSchema;

    use super::*;
    use crate::{CodeRequest, ExecRequest, NewSandbox};
    use job::{GuiInput, NewJob};

    /// The schemas of requests, before and after constraints were added.
    fn derived() -> BTreeMap<String, RefOr<Schema>> {
        let mut schemas = Vec::new();
        for (name, schema) in [
            (NewJob::name(), <NewJob as utoipa::PartialSchema>::schema()),
            (NewSandbox::name(), <NewSandbox as utoipa::PartialSchema>::schema()),
            (ExecRequest::name(), <ExecRequest as utoipa::PartialSchema>::schema()),
            (CodeRequest::name(), <CodeRequest as utoipa::PartialSchema>::schema()),
            (GuiInput::name(), <GuiInput as utoipa::PartialSchema>::schema()),
        ] {
            schemas.push((name.into_owned(), schema));
        }
        NewJob::schemas(&mut schemas);
        NewSandbox::schemas(&mut schemas);
        GuiInput::schemas(&mut schemas);
        schemas.into_iter().collect()
    }

    #[test]
    fn constrained_schemas_lose_nothing_when_they_are_read_back() {
        let mut schemas = derived();
        let mut written = Schemas::new(&schemas);
        constrain(&mut written);
        let expected = written.clone();
        // Numbers such as 3600.0 are written as 3600.
        let plain = |schema: &serde_json::Value| {
            let json = serde_json::to_vec(schema).unwrap();
            job::with_whole_numbers(&json).unwrap_or_else(|| schema.clone())
        };
        written.write_to(&mut schemas);
        for (name, schema) in &schemas {
            let read_back = serde_json::to_value(schema).unwrap();
            assert_eq!(plain(&read_back), plain(expected.get(name).unwrap()), "{name}");
        }
    }

    #[test]
    fn both_kinds_of_jobs_are_constrained() {
        let mut schemas = derived();
        constrain_schemas(&mut schemas);
        let job = serde_json::to_value(&schemas["NewJob"]).unwrap();
        for kind in job["oneOf"].as_array().unwrap() {
            assert_eq!(kind["properties"]["egress_wait_s"]["maximum"], 3600, "{kind}");
            assert_eq!(kind["properties"]["secrets"]["maxProperties"], 32, "{kind}");
            assert!(kind["properties"]["mcp"]["maxProperties"].is_u64(), "{kind}");
        }
    }

    #[test]
    fn each_tool_has_a_schema_that_forbids_other_fields() {
        let mut schemas = derived();
        constrain_schemas(&mut schemas);
        let step = serde_json::to_value(&schemas["Step"]).unwrap();
        let tools = step["oneOf"].as_array().unwrap();
        for name in job::TOOL_NAMES {
            let of_tool =
                tools.iter().filter(|tool| tool["properties"]["tool"]["enum"] == serde_json::json!([name]));
            let of_tool: Vec<_> = of_tool.collect();
            assert!(!of_tool.is_empty(), "{name}");
            for tool in of_tool {
                assert_eq!(tool["additionalProperties"], false, "{tool}");
                assert!(tool["properties"]["retry"]["maximum"] == 10, "{tool}");
            }
        }
    }
}
