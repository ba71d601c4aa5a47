//! The page as a step sees it: our own script in an isolated world that the page's scripts cannot reach.

use serde_json::{Value, json};

use crate::driver::browser::BrowserError;
use crate::driver::browser::devtools::DevTools;

const SCRIPT: &str = include_str!("page.js");
const WORLD: &str = "caisson";

/// How often a document may be replaced between two messages of one action.
const MAX_REPLACEMENTS: usize = 10;
/// What Chromium says when the document of an execution context is gone: the script did not run.
const CONTEXT_GONE: &str = "Cannot find context with specified id";

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

    /// Calls a function of our script in the page. A page that loads may replace its document at any moment, as the first
    /// page of a browser does; the function is called in the new document then.
    pub(super) async fn call_page_function(
        &mut self,
        name: &str,
        arguments: &[Value],
    ) -> Result<Value, BrowserError> {
        let arguments: Vec<String> = arguments.iter().map(Value::to_string).collect();
        let expression = format!("caisson.{name}({})", arguments.join(","));
        let mut replacements = 0;
        loop {
            match self.call_in_document(&expression).await {
                Err(BrowserError::Refused(why)) if why.ends_with(CONTEXT_GONE) => {
                    replacements += 1;
                    if replacements == MAX_REPLACEMENTS {
                        let busy = "the page replaces its document again and again; wait until it has loaded";
                        return Err(BrowserError::Refused(busy.into()));
                    }
                }
                other => return other,
            }
        }
    }

    async fn call_in_document(&mut self, expression: &str) -> Result<Value, BrowserError> {
        let world = self.world().await?;
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

#[cfg(test)]
mod tests {
    use futures::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::Message;

    use super::*;
    use crate::driver::browser::devtools::Page;

    /// Answers like a browser whose document was replaced before each of the first `gone` calls of a function.
    async fn browser(stream: tokio::io::DuplexStream, mut gone: usize) -> usize {
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        let (mut document, mut calls) = (0, 0);
        while let Some(Ok(Message::Text(text))) = socket.next().await {
            let request: Value = serde_json::from_str(&text).unwrap();
            let is_call =
                request["params"]["expression"].as_str().is_some_and(|it| it.starts_with("caisson."));
            let mut answer = match request["method"].as_str().unwrap() {
                "Page.getFrameTree" => json!({"result": {"frameTree": {"frame": {"id": "top"}}}}),
                "Page.createIsolatedWorld" => {
                    document += 1;
                    json!({"result": {"executionContextId": document}})
                }
                _ if is_call && gone > 0 => {
                    gone -= 1;
                    json!({"error": {"code": -32000, "message": CONTEXT_GONE}})
                }
                _ => {
                    calls += usize::from(is_call);
                    json!({"result": {"result": {"value": request["params"]["contextId"]}}})
                }
            };
            answer["id"] = request["id"].clone();
            socket.send(Message::text(answer.to_string())).await.unwrap();
        }
        calls
    }

    async fn call(gone: usize) -> (Result<Value, BrowserError>, usize) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let serving = tokio::spawn(browser(far, gone));
        let page = Page::parse(&json!({"id": "1", "url": "about:blank"})).unwrap();
        let mut tools = DevTools::connect(Box::new(near), &page).await.unwrap();
        let called = tools.call_page_function("read", &[]).await;
        drop(tools);
        (called, serving.await.unwrap())
    }

    #[tokio::test]
    async fn function_is_called_once_in_the_document_that_replaced_another() {
        let (called, calls) = call(2).await;
        assert_eq!((called.unwrap(), calls), (json!(3), 1));
    }

    #[tokio::test]
    async fn page_that_never_stops_replacing_its_document_is_reported() {
        let (called, calls) = call(usize::MAX).await;
        assert!(called.unwrap_err().to_string().contains("again and again"));
        assert_eq!(calls, 0);
    }
}
