//! Explains what the model saw or would see: each segment with its token count and the events it covers.

use std::fmt::Write as _;

use serde::Serialize;

use crate::engine::Engine;
use crate::event_id::{EventId, EventRange};
use crate::policy::POLICY_VERSION;
use crate::view::{Content, Segment, SegmentKind, View};

/// A view with token counts, in the format of the API.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The newest event included.
    pub at: Option<EventId>,
    /// The version of the rules that built the view.
    pub policy_version: u32,
    /// The maximum size of a prompt, by our count.
    pub budget: u32,
    /// The size of this view, by our count.
    pub tokens: u32,
    /// What the provider counts for 1,000 of our tokens.
    pub factor_thousandths: u32,
    /// How often the stable part was rebuilt.
    pub epoch: u32,
    pub segments: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    #[serde(flatten)]
    pub kind: PartKind,
    /// The events that it covers.
    pub covers: Option<EventRange>,
    pub tokens: u32,
    /// The text that the model reads.
    pub text: String,
    /// The events that a summary cites.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cites: Vec<EventRange>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartKind {
    /// Such as `summary` or `masked`.
    pub kind: &'static str,
    /// `user`, `assistant`, `tool`, or empty.
    pub role: &'static str,
    /// The level of a summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// The author of a summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<crate::view::Author>,
}

/// Explains the current view.
pub fn explain_current(engine: &Engine) -> Explanation {
    explain_view(engine, &engine.view())
}

/// Explains a view of this engine; it may have additional segments at the end.
pub fn explain_view(engine: &Engine, view: &View) -> Explanation {
    let mut segments: Vec<Part> = view.segments.iter().map(part).collect();
    if let Some(window) = engine.window() {
        for part in &mut segments {
            match part.kind.kind {
                "system" => part.text.clone_from(&window.system),
                "tools" => {
                    part.text = window.tools.iter().map(|tool| format!("{tool}\n")).collect();
                }
                _ => {}
            }
        }
    }
    Explanation {
        at: view.newest,
        policy_version: POLICY_VERSION,
        budget: view.budget,
        tokens: view.tokens,
        factor_thousandths: engine.factor().thousandths(),
        epoch: view.epoch,
        segments,
    }
}

fn part(segment: &Segment) -> Part {
    let (level, author) = match segment.kind {
        SegmentKind::Summary { level, author } => (Some(level), Some(author)),
        _ => (None, None),
    };
    let role = match segment.content {
        Content::Fixed => "",
        Content::Text { .. } => "user",
        Content::Assistant { .. } => "assistant",
        Content::Result { .. } => "tool",
    };
    let kind = PartKind { kind: name(segment.kind), role, level, author };
    let text = text(&segment.content);
    let cites = if level.is_some() { crate::citations::citations(&text) } else { Vec::new() };
    Part { kind, covers: segment.covers, tokens: segment.tokens, text, cites }
}

fn name(kind: SegmentKind) -> &'static str {
    match kind {
        SegmentKind::System => "system",
        SegmentKind::Tools => "tools",
        SegmentKind::Task => "task",
        SegmentKind::Pin => "pin",
        SegmentKind::Notes => "notes",
        SegmentKind::Map => "map",
        SegmentKind::Plan => "plan",
        SegmentKind::Summary { .. } => "summary",
        SegmentKind::Masked => "masked",
        SegmentKind::Cut => "cut",
        SegmentKind::Raw => "raw",
        SegmentKind::Missing => "missing",
        SegmentKind::Pending => "pending",
        SegmentKind::Volatile => "volatile",
    }
}

fn text(content: &Content) -> String {
    match content {
        Content::Fixed => String::new(),
        Content::Text { text, images, .. } | Content::Result { text, images, .. } => {
            let pictures = images.iter().map(|image| format!("\n[picture {}]", image.media_type));
            pictures.fold(text.to_string(), |all, picture| all + &picture)
        }
        Content::Assistant { reasoning, text, calls } => {
            let mut all = String::new();
            for block in reasoning.iter() {
                all.push_str(&format!("[reasoning {block}]\n"));
            }
            all.push_str(text);
            for call in calls.iter() {
                all.push_str(&format!("\n[call {} {} {}]", call.id, call.name, call.arguments));
            }
            all
        }
    }
}

impl Explanation {
    /// Renders a table with one line per segment, followed by the full text under headings.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let at = self.at.map_or("the start".to_owned(), |at| at.to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "context at {at}: {} of {} tokens in {} segments, epoch {}, policy {}, provider factor {}.{:03}",
            self.tokens,
            self.budget,
            self.segments.len(),
            self.epoch,
            self.policy_version,
            self.factor_thousandths / 1000,
            self.factor_thousandths % 1000,
        );
        let _ = writeln!(out, "\n{:>7}  {:<18}  {:<15}  begins with", "tokens", "what", "events");
        for part in &self.segments {
            let begin = crate::event_facts::first_line(&part.text);
            let covers = part.covers.map_or(String::new(), |range| range.to_string());
            let _ = writeln!(out, "{:>7}  {:<18}  {covers:<15}  {begin}", part.tokens, part.title());
        }
        for part in self.segments.iter().filter(|part| !part.text.is_empty()) {
            let covers = part.covers.map_or(String::new(), |range| format!(" {range}"));
            let _ =
                writeln!(out, "\n=== {}{covers}, {} tokens ===\n{}", part.title(), part.tokens, part.text);
        }
        out
    }
}

impl Part {
    fn title(&self) -> String {
        match (self.kind.level, self.kind.author) {
            (Some(level), Some(author)) => {
                let author = match author {
                    crate::view::Author::Extract => "extract",
                    crate::view::Author::Model => "model",
                };
                format!("summary {level} {author}")
            }
            _ => self.kind.kind.to_owned(),
        }
    }
}
