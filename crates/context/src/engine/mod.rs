//! The engine: consumes the log one entry at a time and always has a view ready.
//!
//! Its state is a fold over the log: the same entries give the same state, on any machine and after any restart.
//! `epoch.rs` handles a view that would become too large.

mod due_summaries;
mod epoch;
mod extract;
mod head;
mod summary_node;
mod unit;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::head::{Head, Pin};
use self::summary_node::Node;
use self::unit::{DisplayMode, Item, ItemKind, Unit};
use crate::entry::{CallResult, Entry, EntryBody, Factor, Image, Summary, Window};
use crate::error::ContextError;
use crate::event_facts::{self, Facts};
use crate::event_id::EventId;
use crate::output_cap;
use crate::policy::{Policy, Settings};
use crate::summary::PROMPT_VERSION;
use crate::tokens;
use crate::view::{Content, Role, Segment, SegmentKind, View};

/// The maximum size of an item, so that sums fit into 32 bits.
const MAX_ITEM_TOKENS: u32 = 1 << 27;

/// Maintains the view of one log.
#[derive(Debug, Clone)]
pub struct Engine {
    settings: Settings,
    policy: Policy,
    head: Head,
    /// Oldest first. Levels only decrease.
    nodes: Vec<Node>,
    /// The units that are not folded, oldest first. The last one may still wait for results.
    tail: Vec<Unit>,
    tail_tokens: u32,
    /// Units that arrived while results were missing or while the model was being asked. They follow the answer and
    /// its results once those are complete.
    held: Vec<Unit>,
    /// The newest entry when the pending model request began. `None` while no request is pending.
    request_began: Option<EventId>,
    /// Summaries written by models, by the hash of their input.
    model_summaries: BTreeMap<String, Summary>,
    /// The newest map, shown from the next epoch on.
    newest_map: Option<Pin>,
    /// The current plan, wherever it is shown.
    plan: Option<Pin>,
    wants_map: bool,
    epochs: u32,
    newest: Option<EventId>,
    /// The newest window in the log.
    window: Option<Window>,
}

/// The effect of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// The stable part of the view has only grown.
    Grown,
    /// An epoch began: the stable part was rebuilt.
    Epoch,
}

impl Engine {
    /// An engine for an empty log.
    ///
    /// # Errors
    /// Settings with a budget that is too small to work with.
    pub fn new(settings: Settings) -> Result<Self, ContextError> {
        let policy = settings.check()?;
        let head = Head::new(settings.fixed, &policy);
        Ok(Self {
            settings,
            policy,
            head,
            nodes: Vec::new(),
            tail: Vec::new(),
            tail_tokens: 0,
            held: Vec::new(),
            request_began: None,
            model_summaries: BTreeMap::new(),
            newest_map: None,
            plan: None,
            wants_map: true,
            epochs: 0,
            newest: None,
            window: None,
        })
    }

    /// An engine for an existing log. To fork a job, pass a shorter log.
    ///
    /// # Errors
    /// Settings with a budget that is too small to work with; entries out of order.
    pub fn from_log(settings: Settings, log: impl IntoIterator<Item = Entry>) -> Result<Self, ContextError> {
        let mut engine = Self::new(settings)?;
        for entry in log {
            engine.append(entry)?;
        }
        Ok(engine)
    }

    /// Appends the next entry of the log. The entry must already be durable.
    ///
    /// # Errors
    /// The entry's id is not larger than the previous one. The engine is unchanged then.
    pub fn append(&mut self, entry: Entry) -> Result<Appended, ContextError> {
        if let Some(newest) = self.newest.filter(|newest| *newest >= entry.id) {
            return Err(ContextError::OutOfOrder { id: entry.id, newest });
        }
        let id = entry.id;
        self.newest = Some(id);
        let tokens = entry.tokens.min(MAX_ITEM_TOKENS);
        let (mut is_forced, mut is_head_changed) = (false, false);
        match entry.body {
            EntryBody::User { text, images } => self.append_user(id, tokens, &text, images),
            EntryBody::Assistant { reasoning, text, calls } => {
                let facts = event_facts::of_answer(&text);
                let waiting = unit::waiting(&calls);
                let (text, calls) = (text.into(), calls.into());
                let content = Content::Assistant { reasoning: reasoning.into(), text, calls };
                let unread = self.take_unread();
                self.close_open(id);
                let item = Item::new(id, ItemKind::Assistant, content, tokens, facts);
                self.push(Unit { items: vec![item], waiting, is_glued: false });
                self.held = unread;
                if self.waiting().is_empty() {
                    self.release();
                }
            }
            EntryBody::Result(result) => self.append_result(id, tokens, result),
            EntryBody::Plan { text } => {
                self.plan = (!text.is_empty()).then(|| Pin { id, text: text.as_str().into() });
                self.append_with_heading(
                    id,
                    ItemKind::Plan,
                    head::plan_text(&text),
                    event_facts::of_text(&text),
                );
            }
            EntryBody::Note { name, text } => {
                self.append_with_heading(
                    id,
                    ItemKind::Note,
                    head::note_text(&name, &text),
                    event_facts::of_text(&name),
                );
            }
            EntryBody::Summary(summary) => {
                if summary.prompt_version == PROMPT_VERSION {
                    self.model_summaries.insert(summary.input_hash.clone(), summary);
                }
            }
            EntryBody::Correction { factor } => {
                self.settings.factor = factor;
                self.update_policy();
            }
            EntryBody::Tighten { limit_tokens } => {
                self.tighten(limit_tokens);
                is_forced = true;
            }
            EntryBody::Window(window) => is_head_changed = self.switch_window(window),
            EntryBody::Map { text } => {
                self.wants_map = false;
                if self.epochs == 0 && self.newest_map.is_none() {
                    let facts = event_facts::of_text(&text);
                    self.append_with_heading(id, ItemKind::Map, head::map_text(&text), facts);
                }
                self.newest_map = Some(Pin { id, text: text.into() });
            }
        }
        let is_over = self.tokens() > self.policy.high || self.head.tokens() > self.policy.fixed_tokens;
        if is_forced || is_over {
            self.begin_epoch();
            return Ok(Appended::Epoch);
        }
        if is_head_changed {
            self.epochs += 1;
            return Ok(Appended::Epoch);
        }
        Ok(Appended::Grown)
    }

    /// The view that the model gets now.
    pub fn view(&self) -> View {
        let items: usize = self.tail.iter().map(|unit| unit.items.len()).sum();
        let mut segments = Vec::with_capacity(self.head.segments().len() + self.nodes.len() + items + 4);
        segments.extend_from_slice(self.head.segments());
        segments.extend(self.nodes.iter().map(Node::segment));
        segments.extend(self.tail.iter().flat_map(|unit| &unit.items).map(Item::segment));
        for (call, _) in self.waiting() {
            let (content, tokens) = unit::missing(call, PENDING_RESULT);
            segments.push(Segment { kind: SegmentKind::Pending, covers: None, tokens, content });
        }
        for item in self.held.iter().flat_map(|unit| &unit.items) {
            segments.push(Segment { kind: SegmentKind::Pending, ..item.segment() });
        }
        let tokens = segments.iter().map(|segment| segment.tokens).sum();
        View { segments, tokens, budget: self.policy.budget, epoch: self.epochs, newest: self.newest }
    }

    /// A prompt with the current view is about to be sent. What arrives before its answer follows that answer, because
    /// the model has not read it. While results are missing, no prompt can be sent, and the call has no effect.
    pub fn begin_request(&mut self) {
        if self.waiting().is_empty() {
            self.release();
            self.request_began = Some(self.newest.unwrap_or(EventId(0)));
        }
    }

    /// The token count of the current view, without building it.
    pub fn tokens(&self) -> u32 {
        let waiting: u32 = self.waiting().iter().map(|(call, _)| unit::missing(call, PENDING_RESULT).1).sum();
        let held: u32 = self.held.iter().map(Unit::tokens).sum();
        self.head.tokens() + summary_node::tokens_of(&self.nodes) + self.tail_tokens + waiting + held
    }

    /// Whether a fresh repository map would be useful: there is none, or an epoch has begun since the last one.
    pub fn wants_map(&self) -> bool {
        self.wants_map
    }

    /// The entry to append when the provider's usage shows that our count is off by more than 3 %.
    pub fn correction(&self, provider_tokens: u64, our_tokens: u64) -> Option<EntryBody> {
        let factor = Factor::from_usage(provider_tokens, our_tokens)?;
        let (new, old) = (factor.thousandths(), self.settings.factor.thousandths());
        (new.abs_diff(old) * 100 > old * 3).then_some(EntryBody::Correction { factor })
    }

    /// How often the stable part of the view was rebuilt; 0 while everything is in view.
    pub fn epochs(&self) -> u32 {
        self.epochs
    }

    pub fn newest(&self) -> Option<EventId> {
        self.newest
    }

    /// The current constants. Corrections in the log change them.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What the provider counts for 1,000 of our tokens, as far as the log shows.
    pub fn factor(&self) -> Factor {
        self.settings.factor
    }

    /// The newest window in the log.
    pub fn window(&self) -> Option<&Window> {
        self.window.as_ref()
    }

    /// The maximum size of a prompt by the provider's count: the window's budget, reduced by what rejected prompts
    /// have shown.
    pub fn budget_tokens(&self) -> u32 {
        self.settings.budget_tokens
    }

    fn waiting(&self) -> &[(Arc<str>, Facts)] {
        self.tail.last().map_or(&[], |unit| unit.waiting.as_slice())
    }

    fn append_user(&mut self, id: EventId, tokens: u32, text: &str, images: Vec<Image>) {
        let is_first = self.head.task.is_none() && self.tail.is_empty() && self.nodes.is_empty();
        if is_first && self.held.is_empty() && images.is_empty() {
            self.head.task = Some(Pin { id, text: text.into() });
            self.head.refresh(&self.policy);
            return;
        }
        let content = Content::Text { role: Role::User, text: text.into(), images };
        let item = Item::new(id, ItemKind::User, content, tokens, event_facts::of_text(text));
        self.push_or_hold(Unit::one(item));
    }

    /// Adds a text that is shown with a heading. The entry's token count does not include the heading.
    fn append_with_heading(&mut self, id: EventId, kind: ItemKind, text: String, facts: Facts) {
        let tokens = (tokens::count(&text) + tokens::MESSAGE_OVERHEAD).min(MAX_ITEM_TOKENS);
        self.push_or_hold(Unit::one(Item::new(id, kind, Content::text(text), tokens, facts)));
    }

    fn append_result(&mut self, id: EventId, tokens: u32, mut result: CallResult) {
        let open = self.tail.last().and_then(|unit| {
            unit.waiting
                .iter()
                .position(|(call, _)| **call == *result.call)
                .map(|at| unit.waiting[at].1.clone())
        });
        let facts = event_facts::of_result(open.clone().unwrap_or_default(), &result);
        // A caller that forgot to cap the output must not exhaust the memory.
        let is_capped = !output_cap::is_within(&result.text);
        if is_capped {
            result.text = output_cap::cap(&result.text).text;
        }
        let kind = ItemKind::Result { exit_code: result.exit_code, is_error: result.is_error };
        let (kind, content) = match open {
            Some(_) => (
                kind,
                Content::Result {
                    call: result.call.as_str().into(),
                    text: result.text.into(),
                    // For a program that ran, the exit code in the text says it all.
                    is_error: result.is_error && result.exit_code.is_none(),
                    images: result.images,
                },
            ),
            None => (
                ItemKind::Late,
                Content::Text {
                    role: Role::User,
                    text: format!("[late result of call {}]\n{}", result.call, result.text).into(),
                    images: result.images,
                },
            ),
        };
        let tokens = if is_capped || kind == ItemKind::Late { content.tokens() } else { tokens };
        let mut item = Item::new(id, kind, content, tokens.min(MAX_ITEM_TOKENS), facts);
        item.whole = result.blob;
        if is_capped {
            item.shown = DisplayMode::Cut;
        }
        if kind == ItemKind::Late {
            let is_glued = self.glue_from_call(&result.call);
            self.push_or_hold(Unit { is_glued, ..Unit::one(item) });
            return;
        }
        if let Some(unit) = self.tail.last_mut() {
            unit.waiting.retain(|(call, _)| **call != *result.call);
            self.tail_tokens += item.tokens;
            unit.items.push(item);
            if unit.waiting.is_empty() {
                self.release();
            }
        }
    }

    /// A late result: glues everything from the call's unit to the end together. Returns whether the call is near
    /// enough. A call far behind keeps its placeholder, because gluing everything since would cost too much.
    fn glue_from_call(&mut self, call: &str) -> bool {
        let first = self.tail.len().saturating_sub(self.policy.newest_events);
        let near = self.tail[first..].iter().position(|unit| unit.has_call(call));
        if let Some(at) = near {
            self.tail[first + at + 1..].iter_mut().for_each(|unit| unit.is_glued = true);
        }
        near.is_some()
    }

    fn push_or_hold(&mut self, unit: Unit) {
        let is_next = self.waiting().is_empty() && self.request_began.is_none() && self.held.is_empty();
        if is_next { self.push(unit) } else { self.held.push(unit) }
    }

    /// Takes the held units that arrived after the answered request had begun.
    fn take_unread(&mut self) -> Vec<Unit> {
        let Some(began) = self.request_began.take() else { return Vec::new() };
        let read = self.held.iter().take_while(|unit| unit.oldest().is_none_or(|id| id <= began)).count();
        self.held.split_off(read)
    }

    fn push(&mut self, unit: Unit) {
        self.tail_tokens += unit.tokens();
        self.tail.push(unit);
    }

    /// The next answer has begun, so results that have not arrived are missing.
    fn close_open(&mut self, id: EventId) {
        if let Some(unit) = self.tail.last_mut() {
            let before = unit.tokens();
            unit.close(id);
            self.tail_tokens += unit.tokens() - before;
        }
        self.release();
    }

    /// Appends the held units after the results they waited for. A unit whose id is lower than that of a result
    /// before it stays glued to it, because the two fold into one range.
    fn release(&mut self) {
        let mut newest = self.tail.last().and_then(Unit::newest);
        for mut unit in std::mem::take(&mut self.held) {
            unit.is_glued |= unit.oldest() < newest;
            newest = newest.max(unit.newest());
            self.push(unit);
        }
    }
}

const PENDING_RESULT: &str = "[no result yet]";
