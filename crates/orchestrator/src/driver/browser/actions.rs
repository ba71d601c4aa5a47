//! Performs one action in a page.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use job::{BrowserInput, ElementChoice, ReadFormat};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::driver::browser::devtools::DevTools;
use crate::driver::browser::page::value_of;
use crate::driver::browser::{BrowserError, BrowserOutcome};

/// Timeout for loading a page.
const LOAD_TIMEOUT: Duration = Duration::from_secs(45);
/// Default timeout of a wait, and how often it polls.
const WAIT_S: f64 = 10.0;
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of characters of a page, bytes of a value, characters per message, and number of messages.
const MAX_TEXT: usize = 100_000;
const MAX_VALUE_BYTES: usize = 1024 * 1024;
const MAX_MESSAGE: usize = 2000;
const MAX_MESSAGES: usize = 500;
/// Maximum size of a screenshot.
const MAX_SCREENSHOT_BYTES: usize = 32 * 1024 * 1024;

/// Performs one action in a page whose events are already enabled.
pub(super) async fn act(tools: &mut DevTools, input: &BrowserInput) -> Result<BrowserOutcome, BrowserError> {
    let mut picture = None;
    let mut facts = match input {
        BrowserInput::Open { url } => open(tools, url).await?,
        BrowserInput::Read { format } => read(tools, *format).await?,
        BrowserInput::Click { element } => click(tools, element).await?,
        BrowserInput::Fill { element, value, submit } => fill(tools, element, value, *submit).await?,
        BrowserInput::Evaluate { expression } => evaluate(tools, expression).await?,
        BrowserInput::Wait { selector, text, seconds } => wait(tools, selector, text, *seconds).await?,
        BrowserInput::Console {} => console(tools).await?,
        BrowserInput::Network {} => json!({ "requests": tools.call_page_function("network", &[]).await? }),
        BrowserInput::Screenshot { full_page } => {
            let parameters = json!({ "format": "png", "captureBeyondViewport": full_page });
            let taken = tools.call("Page.captureScreenshot", parameters).await?;
            let data = taken["data"].as_str().unwrap_or_default();
            let png = STANDARD.decode(data).unwrap_or_default();
            if png.is_empty() || png.len() > MAX_SCREENSHOT_BYTES {
                return Err(BrowserError::Refused(
                    "the browser returned no screenshot, or one that is too large".into(),
                ));
            }
            picture = Some(png.into());
            json!({})
        }
    };
    let dialogs = tools.take_dialogs();
    if !dialogs.is_empty() {
        facts["dialogs"] = dialogs.into();
    }
    Ok(BrowserOutcome { facts, picture })
}

/// The current URL and title of the page.
async fn place(tools: &mut DevTools) -> Result<Value, BrowserError> {
    let parameters =
        json!({ "expression": "({url: location.href, title: document.title})", "returnByValue": true });
    let now = value_of(&tools.call("Runtime.evaluate", parameters).await?)?;
    let short =
        |value: &Value| value.as_str().unwrap_or_default().chars().take(MAX_MESSAGE).collect::<String>();
    Ok(json!({ "url": short(&now["url"]), "title": short(&now["title"]) }))
}

async fn open(tools: &mut DevTools, url: &str) -> Result<Value, BrowserError> {
    let navigated = tools.call("Page.navigate", json!({ "url": url })).await?;
    if let Some(why) = navigated["errorText"].as_str() {
        return Err(BrowserError::Refused(format!("opening {url}: {why}")));
    }
    // Navigating within the same page loads nothing.
    if let Some(loader) = navigated["loaderId"].as_str() {
        tools.wait_for_load(loader, LOAD_TIMEOUT).await?;
    }
    place(tools).await
}

async fn read(tools: &mut DevTools, format: ReadFormat) -> Result<Value, BrowserError> {
    let name = match format {
        ReadFormat::Text => "text",
        ReadFormat::Outline => "outline",
    };
    let content = tools.call_page_function(name, &[]).await?;
    let content = content.as_str().unwrap_or_default();
    let kept: String = content.chars().take(MAX_TEXT).collect();
    let is_truncated = kept.len() < content.len();
    let mut facts = place(tools).await?;
    facts[name] = kept.into();
    if is_truncated {
        facts["truncated"] = true.into();
    }
    Ok(facts)
}

fn choice(element: &ElementChoice) -> Value {
    json!({ "reference": element.reference, "selector": element.selector, "text": element.text })
}

fn describe(element: &ElementChoice) -> String {
    let named = [("ref", &element.reference), ("selector", &element.selector), ("text", &element.text)];
    let named =
        named.iter().find_map(|(name, value)| value.as_ref().map(|value| format!("{name} `{value}`")));
    named.unwrap_or_default().chars().take(200).collect()
}

fn check(found: &Value, doing: &str, element: &ElementChoice) -> Result<(), BrowserError> {
    match found["problem"].as_str() {
        Some(problem) => Err(BrowserError::Refused(format!("{doing} {}: {problem}", describe(element)))),
        None => Ok(()),
    }
}

async fn click(tools: &mut DevTools, element: &ElementChoice) -> Result<Value, BrowserError> {
    let found = tools.call_page_function("place", &[choice(element)]).await?;
    check(&found, "clicking", element)?;
    for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
        let button = if kind == "mouseMoved" { "none" } else { "left" };
        let parameters =
            json!({ "type": kind, "x": found["x"], "y": found["y"], "button": button, "clickCount": 1 });
        tools.call("Input.dispatchMouseEvent", parameters).await?;
    }
    Ok(json!({ "clicked": found["name"] }))
}

async fn fill(
    tools: &mut DevTools,
    element: &ElementChoice,
    value: &str,
    submit: bool,
) -> Result<Value, BrowserError> {
    let found = tools.call_page_function("focus", &[choice(element)]).await?;
    check(&found, "filling", element)?;
    if found["isSelect"] == true {
        let chosen = tools.call_page_function("choose", &[choice(element), value.into()]).await?;
        check(&chosen, "filling", element)?;
    } else if value.is_empty() {
        press(tools, "Delete", 46, None).await?;
    } else {
        tools.call("Input.insertText", json!({ "text": value })).await?;
    }
    if submit {
        press(tools, "Enter", 13, Some("\r")).await?;
    }
    Ok(json!({ "filled": found["name"] }))
}

async fn press(tools: &mut DevTools, key: &str, code: u32, text: Option<&str>) -> Result<(), BrowserError> {
    for kind in ["keyDown", "keyUp"] {
        let text = text.filter(|_| kind == "keyDown");
        let parameters = json!({
            "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text.unwrap_or_default(),
        });
        tools.call("Input.dispatchKeyEvent", parameters).await?;
    }
    Ok(())
}

async fn evaluate(tools: &mut DevTools, expression: &str) -> Result<Value, BrowserError> {
    // REPL mode, so that `await` is allowed anywhere. It does not await a promise that is the resulting value.
    let parameters = json!({
        "expression": expression, "awaitPromise": true, "userGesture": true, "replMode": true,
    });
    let done = tools.call("Runtime.evaluate", parameters).await?;
    let result = &done["result"];
    let done = match &result["objectId"] {
        _ if done.get("exceptionDetails").is_some() => done,
        Value::Null => done,
        object if result["subtype"] == "promise" => {
            let parameters = json!({ "promiseObjectId": object, "returnByValue": true });
            tools.call("Runtime.awaitPromise", parameters).await?
        }
        object => {
            let parameters = json!({
                "objectId": object, "functionDeclaration": "function () { return this; }", "returnByValue": true,
            });
            tools.call("Runtime.callFunctionOn", parameters).await?
        }
    };
    let value = value_of(&done)?;
    if value.to_string().len() > MAX_VALUE_BYTES {
        return Err(BrowserError::Refused(format!(
            "the value has more than {MAX_VALUE_BYTES} bytes as JSON"
        )));
    }
    Ok(json!({ "value": value }))
}

async fn wait(
    tools: &mut DevTools,
    selector: &Option<String>,
    text: &Option<String>,
    seconds: Option<f64>,
) -> Result<Value, BrowserError> {
    let limit = Duration::from_secs_f64(seconds.unwrap_or(WAIT_S).clamp(0.0, 600.0));
    if selector.is_none() && text.is_none() {
        tools.listen(limit).await?;
        return Ok(json!({}));
    }
    let deadline = Instant::now() + limit;
    while tools.call_page_function("has", &[json!(selector), json!(text)]).await? != true {
        if Instant::now() >= deadline {
            let wanted = selector.as_deref().or(text.as_deref()).unwrap_or_default();
            let message = format!("`{wanted}` was not on the page within {} s", limit.as_secs_f64());
            return Err(BrowserError::Timeout(message));
        }
        tools.listen(POLL_INTERVAL).await?;
    }
    place(tools).await
}

/// Enabling these domains makes the browser replay what was printed before we connected.
async fn console(tools: &mut DevTools) -> Result<Value, BrowserError> {
    tools.call("Runtime.enable", json!({})).await?;
    tools.call("Log.enable", json!({})).await?;
    // Wait for one more answer, so that all replayed events have arrived.
    tools.call("Runtime.evaluate", json!({ "expression": "0" })).await?;
    let events =
        tools.take_events(&["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"]);
    let messages: Vec<Value> = events.iter().rev().take(MAX_MESSAGES).rev().map(message_of).collect();
    Ok(json!({ "messages": messages }))
}

fn message_of(event: &Value) -> Value {
    let parameters = &event["params"];
    let (level, text) = match event["method"].as_str() {
        Some("Runtime.consoleAPICalled") => {
            let words = parameters["args"].as_array().into_iter().flatten().map(|argument| {
                let value = &argument["value"];
                let plain = value.as_str().map(str::to_owned);
                let other =
                    || argument["description"].as_str().map_or_else(|| value.to_string(), str::to_owned);
                plain.unwrap_or_else(other)
            });
            (parameters["type"].as_str().unwrap_or("log"), words.collect::<Vec<_>>().join(" "))
        }
        Some("Runtime.exceptionThrown") => {
            let details = &parameters["exceptionDetails"];
            let text = details["exception"]["description"].as_str().or(details["text"].as_str());
            ("exception", text.unwrap_or_default().to_owned())
        }
        _ => {
            let entry = &parameters["entry"];
            let text = format!(
                "{} {}",
                entry["text"].as_str().unwrap_or_default(),
                entry["url"].as_str().unwrap_or_default()
            );
            (entry["level"].as_str().unwrap_or("info"), text)
        }
    };
    json!({ "level": level, "text": text.trim().chars().take(MAX_MESSAGE).collect::<String>() })
}
