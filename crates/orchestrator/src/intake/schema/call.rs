//! The schemas of what is run in a sandbox, and of what a user says to a job.

use job::keywords::{
    command_line, environment, kernel, length, not_blank, range, without_nul, workspace_path,
};
use job::{LONGEST_S, SHORTEST_S};
use serde_json::{Value, json};

use crate::intake::schema::schemas::{Schemas, exclude, one_of, only, require};
use crate::live::calls::{MAX_TIMEOUT_S, MIN_TIMEOUT_S};
use crate::live::control::{MAX_MESSAGE_BYTES, MAX_NAME};

/// A view of a job, or a port.
const VIEW: &str = "^(?:desktop|terminal|files|output|events|notebook|[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$";

pub(super) fn constrain(schemas: &mut Schemas) {
    for request in ["ExecRequest", "StreamRequest"] {
        schemas.field(request, "command", command_line());
        schemas.field(request, "argv", json!({ "minItems": 1, "items": without_nul() }));
        schemas.field(request, "cwd", without_nul());
        schemas.field(request, "environment", environment());
        schemas.field(request, "timeout_s", range(MIN_TIMEOUT_S, MAX_TIMEOUT_S));
        schemas.exactly_one(request, &["command", "argv"]);
    }
    schemas.field("CodeRequest", "code", not_blank());
    schemas.field("CodeRequest", "language", json!({ "pattern": "^(?:python|typescript)$" }));
    schemas.field("CodeRequest", "kernel", kernel());
    schemas.field("CodeRequest", "timeout_s", range(MIN_TIMEOUT_S, MAX_TIMEOUT_S));
    schemas.replace("CodeRequest", |_, request| {
        let mut by_language: Value = request.clone();
        exclude(&mut by_language, "kernel");
        let by_kernel = only(request.clone(), "kernel", &["language", "kernel"]);
        one_of(&request, [by_language, by_kernel].into_iter())
    });
    let mut message = not_blank();
    message["maxLength"] = json!(MAX_MESSAGE_BYTES);
    schemas.field("Message", "text", message);
    schemas.field("ExtendRequest", "ttl_s", range(SHORTEST_S, LONGEST_S));
    schemas.field("ExtendJobRequest", "seconds", range(SHORTEST_S, LONGEST_S));
    schemas.field("MoveRequest", "move_to", workspace_path());
    schemas.field("NewShare", "view", json!({ "pattern": VIEW }));
    // Only notebooks and ports can be limited to a login.
    schemas.replace("NewShare", |_, share| {
        let (mut lasting, mut of_a_login) = (share.clone(), share.clone());
        lasting["properties"]["this_login"]["enum"] = json!([false]);
        of_a_login["properties"]["this_login"]["enum"] = json!([true]);
        of_a_login["properties"]["view"]["pattern"] =
            json!(VIEW.replace("desktop|terminal|files|output|events|", ""));
        require(&mut of_a_login, "this_login");
        one_of(&share, [lasting, of_a_login].into_iter())
    });
    schemas.field(
        "NewKey",
        "name",
        json!({ "minLength": 1, "maxLength": 64, "pattern": "^[A-Za-z0-9._@-]+$" }),
    );
    let mut name = not_blank();
    super::schemas::merge(&mut name, length(1, MAX_NAME));
    schemas.field("Takeover", "by", name);
}
