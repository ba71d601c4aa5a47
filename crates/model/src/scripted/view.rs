//! The parts of a request that select an answer, independent of the API format.

use serde_json::Value;

use crate::name::Dialect;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) system: String,
    /// The last user message.
    pub(super) user: String,
    /// Results after the last answer.
    pub(super) results: Vec<String>,
    /// Number of answers in the conversation.
    pub(super) turns: usize,
    /// Names of the available tools.
    pub(super) tools: Vec<String>,
}

/// Extracts the view from a request body.
pub(super) fn view(dialect: Dialect, body: &Value) -> View {
    let mut view = View { tools: tools(body), ..View::default() };
    match dialect {
        Dialect::OpenAi => view.read_openai(body),
        Dialect::Responses => view.read_responses(body),
        Dialect::Anthropic => view.read_anthropic(body),
        Dialect::Gemini => view.read_gemini(body),
    }
    view
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn tools(body: &Value) -> Vec<String> {
    let declared = list(&body["tools"]).flat_map(|tool| match tool.get("functionDeclarations") {
        Some(inner) => list(inner).collect::<Vec<_>>(),
        None => vec![tool.get("function").unwrap_or(tool)],
    });
    declared.filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect()
}

/// Plain text, or the texts of a list of parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        Value::Object(object) => object.values().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

impl View {
    fn answered(&mut self) {
        self.turns += 1;
        self.results.clear();
    }

    fn read_openai(&mut self, body: &Value) {
        for message in list(&body["messages"]) {
            let text = text_of(&message["content"]);
            match message["role"].as_str() {
                Some("system" | "developer") => self.system = text,
                Some("assistant") => self.answered(),
                Some("tool") => self.results.push(text),
                _ => self.user = text,
            }
        }
    }

    /// In this API an answer consists of several items: consecutive items are one turn.
    fn read_responses(&mut self, body: &Value) {
        self.system = text_of(&body["instructions"]);
        let mut in_answer = false;
        for item in list(&body["input"]) {
            let kind = item["type"].as_str().unwrap_or_default();
            let is_answer = item["role"] == "assistant" || matches!(kind, "function_call" | "reasoning");
            if is_answer && !in_answer {
                self.answered();
            }
            in_answer = is_answer;
            match kind {
                "function_call_output" => self.results.push(text_of(&item["output"])),
                _ if item["role"] == "user" => self.user = text_of(&item["content"]),
                _ => {}
            }
        }
    }

    fn read_anthropic(&mut self, body: &Value) {
        self.system = text_of(&body["system"]);
        for message in list(&body["messages"]) {
            if message["role"] == "assistant" {
                self.answered();
                continue;
            }
            let results = list(&message["content"]).filter(|block| block["type"] == "tool_result");
            self.results.extend(results.map(|block| text_of(&block["content"])));
            let text = text_of(&message["content"]);
            if !text.is_empty() {
                self.user = text;
            }
        }
    }

    fn read_gemini(&mut self, body: &Value) {
        self.system = text_of(&body["systemInstruction"]["parts"]);
        for content in list(&body["contents"]) {
            if content["role"] == "model" {
                self.answered();
                continue;
            }
            let results = list(&content["parts"]).filter_map(|part| part.get("functionResponse"));
            self.results.extend(results.map(|result| text_of(&result["response"])));
            let text = text_of(&content["parts"]);
            if !text.is_empty() {
                self.user = text;
            }
        }
    }
}
