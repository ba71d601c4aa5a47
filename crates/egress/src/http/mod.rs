//! HTTP/1.1 messages on their way through the proxy.

mod forward;
mod headers;
mod refusal_response;
mod response_body;
mod response_head;
mod upgrade;

pub(crate) use forward::{
    ForwardContext, Open, Scheme, exchange, fetch_of, forward, host_header, rewrite_request, strip,
};
pub(crate) use headers::{check_host, check_unique_headers};
pub(crate) use refusal_response::{RefusalForm, refusal_response, serialized_refusal};
pub(crate) use response_body::{AuditedBody, BodyGuard, ResponseBody};
pub(crate) use response_head::{ask_for_searchable, check_searchable, redact_head, restore_placeholders};
pub(crate) use upgrade::{Upgrade, is_web_socket};
