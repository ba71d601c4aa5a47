//! Background summaries: which ones the next epoch will need, and the prompt for each.

use std::fmt::Write as _;

use super::Engine;
use super::head::Pin;
use super::summary_node::{self, Node};
use super::unit::{self, Item, ItemKind, Unit};
use crate::citations;
use crate::event_id::{EventId, EventRange};
use crate::summary::SummaryTask;
use crate::tokens;
use crate::tokens::truncate;
use crate::view::{Author, Content};

/// Maximum number of summaries requested at once; the oldest are needed first.
const MAX_TASKS: usize = 4;
/// Maximum number of identifiers of the plan that a summary must keep.
const MAX_REQUIRED_IDENTIFIERS: usize = 16;
/// Approximate size of a masked observation.
const MASK_TOKENS: u32 = 40;
/// One item takes at most this much of a prompt.
const ITEM_TOKENS: u32 = 1_500;
/// Task and plan take at most this much of a prompt each.
const ORIENTATION_TOKENS: u32 = 500;
const PROMPT: &str = include_str!("prompts/summary.md");

impl Engine {
    /// The summaries that the next epoch will need and that the log does not have yet, oldest first. Empty while the
    /// view is small. Ask a model for them in the background, check the answer ([`SummaryTask::check`]) and append
    /// it as [`crate::EntryBody::Summary`]. Without them the engine uses its own extract.
    pub fn due_summaries(&self) -> Vec<SummaryTask> {
        self.summaries(MAX_TASKS, |_| false)
    }

    /// The first of [`Self::due_summaries`] whose input was not tried before. Builds no prompts for the others.
    pub fn next_summary(&self, was_tried: impl Fn(&str) -> bool) -> Option<SummaryTask> {
        self.summaries(1, was_tried).pop()
    }

    fn summaries(&self, most: usize, was_tried: impl Fn(&str) -> bool) -> Vec<SummaryTask> {
        if self.tokens() < self.policy.ahead || !self.will_fold() {
            return Vec::new();
        }
        let mut tasks = Vec::new();
        let spared = self.spared_from();
        let mut start = 0;
        while let Some(end) = self.chunk_from(start, spared) {
            if tasks.len() == most {
                return tasks;
            }
            tasks.extend(self.task_of_units(&self.tail[start..end], &was_tried));
            start = end;
        }
        let upper = self.nodes.iter().filter(|node| node.author == Author::Extract && node.sources.is_some());
        let room = most - tasks.len();
        tasks.extend(upper.filter_map(|node| self.task_of_node(node, &was_tried)).take(room));
        tasks
    }

    /// Whether the next epoch will have to fold: at the current growth, masking alone will not be enough.
    fn will_fold(&self) -> bool {
        let (old, newest) = self.tail.split_at(self.newest_from());
        let old = old.iter().flat_map(|unit| &unit.items).filter(|item| item.is_observation());
        let maps = newest.iter().flat_map(|unit| &unit.items).filter(|item| item.kind == ItemKind::Map);
        let maskable: u32 = old.chain(maps).map(|item| item.tokens.saturating_sub(MASK_TOKENS)).sum();
        let tokens = self.tokens();
        let left = u64::from(tokens.saturating_sub(maskable));
        left * u64::from(self.policy.high) / u64::from(tokens.max(1)) > u64::from(self.policy.low)
    }

    fn task_of_units(&self, units: &[Unit], was_tried: &impl Fn(&str) -> bool) -> Option<SummaryTask> {
        let range = unit::range_of(units.iter())?;
        let input_hash = unit::hash_of(units.iter());
        if self.model_summaries.contains_key(&input_hash) || was_tried(&input_hash) {
            return None;
        }
        let mut input = String::new();
        units.iter().flat_map(|unit| &unit.items).for_each(|item| write_item(&mut input, item));
        if tokens::count(&input) <= self.policy.summary_tokens {
            // No summary could be shorter by much, and an empty one would be made up.
            return None;
        }
        let items = units.iter().flat_map(|unit| &unit.items);
        let events = items.filter(|item| item.kind != ItemKind::Missing).map(|item| item.id).collect();
        Some(self.task(range, 1, input_hash, &input, events))
    }

    fn task_of_node(&self, node: &Node, was_tried: &impl Fn(&str) -> bool) -> Option<SummaryTask> {
        if self.model_summaries.contains_key(&node.hash) || was_tried(&node.hash) {
            return None;
        }
        let input = node.sources.as_deref()?;
        let mut events: Vec<EventId> =
            citations::citations(input).iter().flat_map(|range| [range.first, range.last]).collect();
        events.extend([node.range.first, node.range.last]);
        Some(self.task(node.range, node.level, node.hash.clone(), input, events))
    }

    fn task(
        &self,
        range: EventRange,
        level: u8,
        input_hash: String,
        input: &str,
        mut events: Vec<EventId>,
    ) -> SummaryTask {
        events.sort_unstable();
        events.dedup();
        let max_tokens = summary_node::max_tokens(range, &self.policy);
        let keep: Vec<String> = self
            .plan
            .as_ref()
            .map(|plan| citations::identifiers(&plan.text))
            .unwrap_or_default()
            .into_iter()
            .filter(|identifier| input.contains(identifier.as_str()))
            .take(MAX_REQUIRED_IDENTIFIERS)
            .collect();
        let about = Orientation { task: self.head.task.as_ref(), plan: self.plan.as_ref() };
        let prompt = prompt(range, max_tokens, &keep, &about, &shorten(input, self.policy.budget / 2));
        SummaryTask { range, level, prompt, input_hash, max_tokens, keep, events }
    }
}

/// What the model gets to know besides the history itself.
struct Orientation<'a> {
    task: Option<&'a Pin>,
    plan: Option<&'a Pin>,
}

fn prompt(
    range: EventRange,
    max_tokens: u32,
    keep: &[String],
    about: &Orientation<'_>,
    input: &str,
) -> String {
    let mut prompt = PROMPT
        .replace("{words}", &(max_tokens / 2).to_string())
        .replace("{first}", &range.first.to_string())
        .replace("{last}", &range.last.to_string());
    if !keep.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(prompt, "These must occur: {}", keep.join(", "));
    }
    for (title, pin) in [("task", about.task), ("plan now", about.plan)] {
        if let Some(pin) = pin {
            let text = shorten(&pin.text, ORIENTATION_TOKENS);
            let _ = write!(
                prompt,
                "\n--- {title}, so that you know what matters; do not summarize it ---\n{text}\n"
            );
        }
    }
    prompt.push_str("\n--- history ---\n");
    prompt.push_str(input);
    prompt.push_str("\n--- end of history ---\n");
    prompt
}

fn shorten(text: &str, most: u32) -> String {
    truncate::head_and_tail(text, most, |bytes, _| format!("[{bytes} bytes left out]"))
}

/// Renders an item; nothing if it has no text that a summary could rest on.
fn write_item(input: &mut String, item: &Item) {
    let who = match item.kind {
        ItemKind::User => "user".to_owned(),
        ItemKind::Assistant => "agent".to_owned(),
        ItemKind::Result { .. } | ItemKind::Late | ItemKind::Missing => output_of(item),
        ItemKind::Plan => "plan".to_owned(),
        ItemKind::Note => "note".to_owned(),
        ItemKind::Map => return,
    };
    let (text, calls) = match &item.full {
        Content::Fixed => return,
        Content::Text { text, .. } | Content::Result { text, .. } => (text, String::new()),
        Content::Assistant { text, calls, .. } => {
            let calls = calls.iter().fold(String::new(), |all, call| {
                format!("{all}\n  call {}: {}", call.name, shorten(&call.arguments.to_string(), ITEM_TOKENS))
            });
            (text, calls)
        }
    };
    if !text.trim().is_empty() || !calls.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(input, "[{}] {who}: {}{calls}", item.id, shorten(text, ITEM_TOKENS));
    }
}

/// Names the call that an output belongs to, and how it ended.
fn output_of(item: &Item) -> String {
    let outcome = match item.kind {
        ItemKind::Result { exit_code: Some(code), .. } => format!(", exit {code}"),
        ItemKind::Result { is_error: true, .. } => ", failed".to_owned(),
        _ => String::new(),
    };
    let label = if item.facts.label.is_empty() { "an earlier call" } else { &item.facts.label };
    format!("output of `{label}`{outcome}")
}
