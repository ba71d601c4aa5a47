//! The schemas of what a job or a sandbox may use of the network.

use job::keywords::range;
use job::{LONGEST_WAIT_S, MAX_ALLOWANCE, MAX_SECRET_NAME, MOST_SECRETS, host};
use serde_json::json;

use crate::intake::schema::schemas::Schemas;

pub(super) fn constrain(schemas: &mut Schemas) {
    for request in ["NewJob", "NewSandbox"] {
        schemas.field(request, "egress_wait_s", range(0, LONGEST_WAIT_S));
        let name = json!({
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_SECRET_NAME,
            "pattern": "^[A-Z][A-Z0-9_]*$",
        });
        schemas.field(request, "secrets", json!({ "maxProperties": MOST_SECRETS, "propertyNames": name }));
    }
    for part in ["bytes", "connections", "bytes_per_second"] {
        schemas.field("NewAllowance", part, range(1, MAX_ALLOWANCE));
    }
    schemas.field(
        "NewSecret",
        "hosts",
        json!({ "minItems": 1, "maxItems": ::egress::MAX_SECRET_HOSTS, "items": host() }),
    );
}
