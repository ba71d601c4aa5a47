//! The input of a `browser` step.

use context::ToolEffect;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::input::{StepCall, StepInput};
use crate::invalid::InvalidField;
use crate::json::keywords::{not_blank, range};

/// Maximum length of a text to type, evaluate or search for.
const MAX_TEXT_BYTES: usize = 256 * 1024;
const MAX_URL_BYTES: usize = 8 * 1024;
const MAX_WAIT_S: f64 = 600.0;

/// Something to do in the browser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "action", deny_unknown_fields)]
pub enum BrowserInput {
    /// Goes to an address and waits until the page is loaded.
    Open {
        /// The address.
        url: String,
    },
    /// Reads the page.
    Read {
        /// `text` (the default), or `outline`: what can be used, each with a reference for `click` and `fill`.
        #[serde(default)]
        format: ReadFormat,
    },
    /// Clicks an element.
    Click {
        /// Which.
        #[serde(flatten)]
        element: ElementChoice,
    },
    /// Replaces the text of a field.
    Fill {
        /// Which.
        #[serde(flatten)]
        element: ElementChoice,
        /// The new text.
        value: String,
        /// Presses return afterwards.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        submit: bool,
    },
    /// Evaluates JavaScript in the page; the value, as JSON, is the result.
    Evaluate {
        /// An expression; a promise is waited for.
        expression: String,
    },
    /// Waits for an element, or for a time.
    Wait {
        /// A CSS selector that must match.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        selector: Option<String>,
        /// A text that must be on the page.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// How long, at most; 10 where something is waited for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds: Option<f64>,
    },
    /// Takes a picture of the page.
    Screenshot {
        /// The whole page, not only what is visible.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        full_page: bool,
    },
    /// What the page has printed to its console.
    Console {},
    /// What the page has loaded.
    Network {},
}

/// How a page is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadFormat {
    /// Its visible text.
    #[default]
    Text,
    /// Headings, links, buttons and fields, each with a reference.
    Outline,
}

/// Names an element: exactly one of the three.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ElementChoice {
    /// A reference of the newest outline, such as `e12`.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// A CSS selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// A part of the visible text of a link, button or label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

fn invalid(field: &str, problem: impl Into<String>) -> InvalidField {
    InvalidField { field: field.to_owned(), problem: problem.into() }
}

impl StepInput for BrowserInput {
    const EFFECT: ToolEffect = ToolEffect::Screen;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        self.check()?;
        Ok(StepCall::Browser(self))
    }

    fn action_limits() -> Vec<(&'static str, &'static str, Value)> {
        let url = r"^(?:https?://|file:///|about:|data:)[^\x00-\x1f\x7f-\x9f]*$";
        vec![
            ("open", "url", json!({ "maxLength": MAX_URL_BYTES, "pattern": url })),
            ("fill", "value", json!({ "maxLength": MAX_TEXT_BYTES })),
            ("evaluate", "expression", not_blank()),
            ("wait", "seconds", range(0, MAX_WAIT_S)),
        ]
    }
}

impl BrowserInput {
    /// Checks what can be checked without a page.
    pub fn check(&self) -> Result<(), InvalidField> {
        match self {
            Self::Open { url } => check_url(url),
            Self::Click { element } => element.check(),
            Self::Fill { element, value, .. } => {
                check_text("value", value)?;
                element.check()
            }
            Self::Evaluate { expression } if expression.trim().is_empty() => {
                Err(invalid("expression", "is empty"))
            }
            Self::Evaluate { expression } => check_text("expression", expression),
            Self::Wait { selector: None, text: None, seconds: None } => {
                Err(invalid("seconds", "give `selector`, `text` or `seconds`"))
            }
            Self::Wait { seconds: Some(seconds), .. } if !(0.0..=MAX_WAIT_S).contains(seconds) => {
                Err(invalid("seconds", format!("{seconds} is not between 0 and {MAX_WAIT_S}")))
            }
            _ => Ok(()),
        }
    }
}

fn check_url(url: &str) -> Result<(), InvalidField> {
    const SCHEMES: [&str; 5] = ["http://", "https://", "file:///", "about:", "data:"];
    if url.len() > MAX_URL_BYTES {
        return Err(invalid("url", format!("has {} bytes, at most {MAX_URL_BYTES} are allowed", url.len())));
    }
    if SCHEMES.iter().any(|scheme| url.starts_with(scheme)) && !url.contains(char::is_control) {
        return Ok(());
    }
    Err(invalid("url", format!("`{url}` must start with http://, https://, file:///, about: or data:")))
}

fn check_text(field: &str, text: &str) -> Result<(), InvalidField> {
    if text.len() <= MAX_TEXT_BYTES {
        return Ok(());
    }
    Err(invalid(field, format!("has {} bytes, at most {MAX_TEXT_BYTES} are allowed", text.len())))
}

impl ElementChoice {
    fn check(&self) -> Result<(), InvalidField> {
        let given = [&self.reference, &self.selector, &self.text];
        if given.iter().filter(|choice| choice.is_some()).count() == 1 {
            given.into_iter().flatten().try_for_each(|text| check_text("selector", text))
        } else {
            Err(invalid("ref", "give one of `ref` (of the outline), `selector` (CSS) or `text`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        let input: BrowserInput = serde_json::from_str(text).map_err(|error| error.to_string())?;
        input.check().map_err(|error| error.to_string())
    }

    #[test]
    fn an_element_is_named_in_exactly_one_way() {
        assert!(check(r#"{"action":"click","ref":"e1"}"#).is_ok());
        assert!(check(r#"{"action":"click"}"#).unwrap_err().contains("give one of"));
        assert!(check(r#"{"action":"click","ref":"e1","text":"Go"}"#).unwrap_err().contains("give one of"));
    }

    #[test]
    fn unknown_fields_are_refused_by_every_action() {
        for action in
            ["open", "read", "click", "fill", "evaluate", "wait", "screenshot", "console", "network"]
        {
            let input = serde_json::json!({
                "action": action, "ref": "e1", "url": "about:blank", "value": "", "expression": "1", "colour": 1,
            });
            let error = check(&input.to_string()).unwrap_err();
            assert!(error.contains("unknown field"), "{action}: {error}");
        }
        assert!(check(r#"{"action":"console","colour":1}"#).unwrap_err().contains("colour"));
    }

    #[test]
    fn unsupported_url_schemes_are_refused() {
        for url in ["javascript:alert(1)", "example.org", "chrome://settings", ""] {
            let text = serde_json::json!({ "action": "open", "url": url }).to_string();
            assert!(check(&text).unwrap_err().starts_with("url: "), "{url}");
        }
        assert!(check(r#"{"action":"open","url":"http://localhost:5173/"}"#).is_ok());
        assert!(check(r#"{"action":"wait"}"#).is_err());
    }
}
