//! Assembles a model request, and renders it as text.

use std::fmt::Write as _;
use std::sync::Arc;

use model::{ModelRequest, Part, ResultPart, Role, ToolSpec};

use super::messages::Messages;

pub(crate) fn request_of(messages: &Messages, system: &Arc<str>, tools: &Arc<[ToolSpec]>) -> ModelRequest {
    ModelRequest {
        system: Arc::clone(system),
        messages: messages.shared(),
        ends_with_status: messages.end_with_status(),
        tools: Arc::clone(tools),
        cache_after: messages.last_stable().into_iter().collect(),
        ..ModelRequest::default()
    }
}

/// The request as text, for `context.txt`.
#[must_use]
pub fn context_text(request: &ModelRequest) -> String {
    let mut text = format!("# system\n{}\n# tools\n", request.system);
    for tool in &*request.tools {
        let _ = writeln!(text, "{}", tool.name);
    }
    for message in &request.messages {
        let _ = writeln!(text, "\n# {}", if message.role == Role::User { "user" } else { "assistant" });
        for part in &message.parts {
            match part {
                Part::Text(words) => text += words,
                Part::Image(image) => {
                    let _ = write!(text, "[picture, {}, {} bytes]", image.media_type, image.bytes.len());
                }
                Part::Reasoning(reasoning) => {
                    let _ = write!(text, "[thinking] {}", reasoning.text);
                }
                Part::ToolCall(call) => {
                    let _ = write!(text, "[call {}] {} {}", call.id, call.name, call.arguments);
                }
                Part::ToolResult(result) => {
                    let _ = write!(text, "[result of {}]", result.id);
                    for part in &result.parts {
                        match part {
                            ResultPart::Text(words) => {
                                let _ = write!(text, "\n{words}");
                            }
                            ResultPart::Image(image) => {
                                let _ = write!(text, "\n[picture, {} bytes]", image.bytes.len());
                            }
                        }
                    }
                }
            }
            text.push('\n');
        }
    }
    text
}
