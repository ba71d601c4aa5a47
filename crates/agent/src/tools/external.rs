//! Runs external tools like built-in ones: the host executes the call.

use async_trait::async_trait;
use model::ToolSpec;
use serde_json::Value;

use super::data_header::data_header;
use super::tool::{AnyTool, CallContext, ToolFlow};
use crate::event::{ToolEnd, ToolStatus};
use crate::host::{Capability, Effect, ExternalTool, Stopped};

#[async_trait]
impl AnyTool for ExternalTool {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn needs(&self) -> &'static [Capability] {
        &[]
    }

    fn is_builtin(&self) -> bool {
        false
    }

    async fn run(&self, input: Value, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        if !input.is_object() {
            let text = format!(
                "{}: the arguments must be one JSON object. Expected: {}",
                self.spec.name, self.spec.input_schema["properties"]
            );
            return Ok(ToolEnd::malformed(text).into());
        }
        let mut end = call.host.call_external_tool(&self.spec.name, input, call.id).await?;
        if end.status == ToolStatus::Done {
            end.text.insert_str(0, &data_header(&format!("`{}`", self.spec.name)));
        }
        Ok(end.into())
    }
}
