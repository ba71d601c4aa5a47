//! Replaces secrets in what is logged.

use egress::Redactor;
use job::{EventBody, NewEvent};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Redacts the values of secrets anywhere in an event.
pub(crate) fn redact_event(event: NewEvent, redactor: &Redactor) -> NewEvent {
    let kind = event.body.kind();
    // An event that cannot be redacted is not logged.
    let left_out = || EventBody::Note {
        text: format!("an event of kind {kind} held the value of a secret and was left out"),
    };
    NewEvent { body: redact_all(event.body, redactor).unwrap_or_else(left_out), ..event }
}

/// Redacts the values of secrets in all strings of a value; `None` if that fails.
pub(crate) fn redact_all<T: Serialize + DeserializeOwned>(thing: T, redactor: &Redactor) -> Option<T> {
    let text = serde_json::to_vec(&thing).ok()?;
    if !redactor.finds(&text) {
        return Some(thing);
    }
    let mut value = serde_json::from_slice(&text).ok()?;
    redact_value(&mut value, redactor);
    serde_json::from_value(value).ok()
}

fn redact_value(value: &mut serde_json::Value, redactor: &Redactor) {
    match value {
        serde_json::Value::String(text) => *text = redactor.redact_text(text),
        serde_json::Value::Array(items) => items.iter_mut().for_each(|item| redact_value(item, redactor)),
        serde_json::Value::Object(map) => {
            let entries = std::mem::take(map);
            for (name, mut item) in entries {
                redact_value(&mut item, redactor);
                map.insert(redactor.redact_text(&name), item);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use egress::Redactor;
    use job::{EventBody, NewEvent};

    use super::*;

    #[test]
    fn secrets_are_redacted_anywhere_in_an_event() {
        let redactor = Redactor::new(["s3cr3t-value"]);
        let input = serde_json::json!({"s3cr3t-value": ["a s3cr3t-value b", 7]});
        let event = EventBody::CallStarted { step: None, tool: "shell".into(), input }.into();
        let EventBody::CallStarted { input, .. } = redact_event(event, &redactor).body else { panic!() };
        assert_eq!(input, serde_json::json!({"************": ["a ************ b", 7]}));
    }

    #[test]
    fn event_without_secrets_is_unchanged() {
        let redactor = Redactor::new(["s3cr3t-value"]);
        let event: NewEvent = EventBody::Note { text: "nothing to hide".into() }.into();
        assert_eq!(redact_event(event.clone(), &redactor), event);
    }
}
