//! The page as a step sees it: our own script in an isolated world that the page's scripts cannot reach.

use serde_json::{Value, json};

use super::BrowserError;
use super::devtools::DevTools;

const SCRIPT: &str = include_str!("page.js");
const WORLD: &str = "caisson";

impl DevTools {
    /// The execution context id of our isolated world in the current page, with our script loaded.
    async fn world(&mut self) -> Result<Value, BrowserError> {
        let tree = self.call("Page.getFrameTree", json!({})).await?;
        let frame = tree["frameTree"]["frame"]["id"].clone();
        let parameters = json!({ "frameId": frame, "worldName": WORLD });
        let world = self.call("Page.createIsolatedWorld", parameters).await?["executionContextId"].clone();
        let parameters = json!({ "expression": SCRIPT, "contextId": world });
        self.call("Runtime.evaluate", parameters).await?;
        Ok(world)
    }

    /// Calls a function of our script in the page.
    pub(super) async fn call_page_function(
        &mut self,
        name: &str,
        arguments: &[Value],
    ) -> Result<Value, BrowserError> {
        let world = self.world().await?;
        let arguments: Vec<String> = arguments.iter().map(Value::to_string).collect();
        let expression = format!("caisson.{name}({})", arguments.join(","));
        let parameters = json!({ "expression": expression, "contextId": world, "returnByValue": true });
        let done = self.call("Runtime.evaluate", parameters).await?;
        value_of(&done)
    }
}

/// The result of a script, or the exception it threw.
pub(super) fn value_of(done: &Value) -> Result<Value, BrowserError> {
    let Some(exception) = done.get("exceptionDetails") else { return Ok(done["result"]["value"].clone()) };
    let description = exception["exception"]["description"].as_str();
    let text = description.or(exception["text"].as_str()).unwrap_or("the script has failed");
    Err(BrowserError::Refused(text.chars().take(4000).collect()))
}
