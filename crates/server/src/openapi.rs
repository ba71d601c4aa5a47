//! What all operations of the OpenAPI document have in common: authentication, permissions, and the problems that
//! several of them share.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::path::{Operation, ParameterIn, PathItem};
use utoipa::openapi::schema::{SchemaType, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Required, Response, ResponseBuilder, Schema};

use crate::access::{Permission, SESSION_COOKIE};

/// The names of the security schemes.
const BY_KEY: &str = "key";
const BY_SESSION: &str = "session";

/// Adds a route to the document, with the permission and the problems that it has by being a route.
pub(crate) fn add_route(document: &mut OpenApi, path: &str, permission: Permission, mut item: PathItem) {
    for operation in operations(&mut item) {
        add_access(operation, permission);
        if path.starts_with("/v1/sandboxes/{id}/") {
            describe_as_sandbox(operation);
        }
        add_common_problems(operation);
        refuse_null_headers(operation);
        allow_empty_content(operation);
    }
    // axum marks a parameter that spans several path segments with a star, which OpenAPI cannot express.
    let path = path.replace("{*", "{");
    document.paths.paths.entry(path).or_default().merge_operations(item);
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete].into_iter().flatten()
}

/// Adds the security schemes: programs send a key, the web page a session cookie.
pub(crate) fn add_security_schemes(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    let cookie = ApiKey::Cookie(ApiKeyValue::new(SESSION_COOKIE));
    components.add_security_scheme(BY_KEY, SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    components.add_security_scheme(BY_SESSION, SecurityScheme::ApiKey(cookie));
}

/// Documents the permission of an operation and the errors of authentication.
fn add_access(operation: &mut Operation, permission: Permission) {
    let extensions = operation.extensions.get_or_insert_default();
    extensions.insert("x-required-permission".to_owned(), permission.name().into());
    if permission == Permission::Nothing {
        return;
    }
    operation.security =
        Some([BY_KEY, BY_SESSION].map(|scheme| SecurityRequirement::new(scheme, [""; 0])).into());
    let no_key = "`key_missing`, `key_unknown`: an API key is required";
    add_problem(operation, "401", no_key);
    add_problem(operation, "403", "`role_too_weak`: the key may not do this");
    add_problem(
        operation,
        "429",
        "`rate_limited`: the key may not ask so often; `Retry-After` says when to try again",
    );
}

/// Rewrites the description of a route that jobs and sandboxes share to say "sandbox".
fn describe_as_sandbox(operation: &mut Operation) {
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

/// An absent header has no value; a header with the value null does not exist.
fn refuse_null_headers(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        if let (ParameterIn::Header, Some(RefOr::T(Schema::Object(schema)))) =
            (&parameter.parameter_in, &mut parameter.schema)
            && let SchemaType::Array(types) = &mut schema.schema_type
        {
            types.retain(|name| *name != Type::Null);
            if let [single] = types.as_slice() {
                schema.schema_type = SchemaType::Type(single.clone());
            }
        }
    }
}

/// Content of any type may be empty, and HTTP does not tell an empty body from an absent one.
fn allow_empty_content(operation: &mut Operation) {
    if let Some(RefOr::T(body)) = &mut operation.request_body
        && body.content.keys().all(|media_type| media_type == "application/octet-stream")
    {
        body.required = Some(Required::False);
    }
}

/// Adds the problems that every operation can return.
fn add_common_problems(operation: &mut Operation) {
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
        "400": "`bad_job_id`: not the id of a job; `invalid_path`, `bad_sequence`, `invalid_query`: another part is wrong",
        "404": "`job_not_found`; `no_artifact`: it has none (yet)",
    }
    /// For downloads of a finished job.
    DownloadProblems {
        "400": "`bad_job_id`: not the id of a job; `invalid_path`: the name is not UTF-8",
        "404": "`job_not_found`; `download_not_found`: the job has no such file, or has not ended",
    }
    /// For operations with a query.
    QueryProblems {
        "400": "`invalid_query`: a parameter is unknown or wrong; `bad_job_id`: not the id of a job; `invalid_path`, `bad_sequence`",
    }
    /// For operations with a JSON body.
    BodyProblems {
        "400": "`malformed_json` with line and column; `body_incomplete`; `bad_job_id`; `invalid_path`",
        "408": "`body_timeout`: the body did not arrive in time",
        "413": "`body_too_large`",
        "415": "`unsupported_media_type`",
        "422": "`invalid_field`: `field` says which; `limit_unenforceable`, `limit_out_of_range`, `image_not_found`, ...",
    }
    /// For submitting a job.
    SubmitProblems {
        "400": "`malformed_json` with line and column; `malformed_text`; `malformed_form`; `body_incomplete`; `bad_idempotency_key`; `invalid_path`",
        "408": "`body_timeout`: the body did not arrive in time",
        "413": "`body_too_large`",
        "415": "`unsupported_media_type`",
        "422": "`invalid_field`: `field` says which; `idempotency_mismatch`: the key came with another job; `limit_unenforceable`; `limit_out_of_range`; `unknown_archive`, `broken_archive`: `field` names the part",
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
    /// For choosing a model.
    ModelChoiceProblems {
        "409": "`model_configured`: the configuration file or the environment names a model and has priority",
        "503": "`store_unavailable`: the data folder cannot be written; `Retry-After` says when to try again",
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
        "503": "`host_disk_full`, `host_unsupported`, `backend_unavailable`, `shutting_down`",
        "507": "`disk_full`: of the job; `server_disk_full`",
    }
    /// For file operations.
    FileProblems {
        "400": "`invalid_path`: it has a NUL byte, or it or one of its names is too long; `bad_job_id`, `invalid_query`",
        "403": "`path_outside_workspace`; `permission_denied`",
        "404": "`job_not_found`, `file_not_found`",
        "409": "`wrong_state`: the job has no files (yet); `not_directory`; `not_a_file`: a pipe, socket or device; `link_loop`",
        "413": "`file_too_large`",
        "502": "`sandbox_unreachable`",
    }
}
