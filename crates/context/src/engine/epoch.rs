//! An epoch: the view has crossed its high watermark and is reduced to the low one, stage by stage.
//!
//! ```text
//! mask observations -> fold the oldest units -> carry summaries -> cut giants -> (only if still over the budget:)
//! cut everything -> leave out reasoning -> fold even the newest
//! ```
//!
//! A step that does not make the view smaller is not taken, and every stage is finite, so an epoch always ends
//! within the budget.

use super::Engine;
use super::summary_node::{self, Node};
use super::unit::{DisplayMode, Item, ItemKind, Unit};
use crate::event_id::EventId;
use crate::policy::Policy;
use crate::view::Author;

/// Nothing is cut to fewer tokens than this.
const MIN_CUT: u32 = 32;

impl Engine {
    /// Whether the view stands for something that it does not show: events in a summary, or a text that is masked, cut or
    /// the preview of a large output.
    pub fn has_left_out(&self) -> bool {
        let is_short = |item: &Item| item.shown != DisplayMode::Raw || item.whole.is_some();
        let mut items = self.tail.iter().chain(&self.held).flat_map(|unit| &unit.items);
        !self.nodes.is_empty() || !self.head.shows_whole_task() || items.any(is_short)
    }

    pub(super) fn begin_epoch(&mut self) {
        self.epochs += 1;
        self.wants_map = true;
        self.adopt_model_summaries();
        self.head.map = self.newest_map.clone();
        self.head.refresh(&self.policy);
        self.mask_maps();
        self.mask();
        self.fold();
        summary_node::carry(&mut self.nodes, &self.policy);
        self.head.refresh(&self.policy);
        self.cut_giants();
        self.shrink_further();
        self.adopt_model_summaries();
        self.drop_unusable_summaries();
    }

    /// Replaces extracts with the model summaries that arrived since the last epoch. A summary longer than the
    /// extract is used only if the view stays below its low watermark.
    fn adopt_model_summaries(&mut self) {
        let mut room = self.policy.low.saturating_sub(self.tokens());
        for node in self.nodes.iter_mut().filter(|node| node.author == Author::Extract) {
            if let Some(summary) = self.model_summaries.get(&node.hash) {
                let before = node.tokens;
                node.adopt(summary, before + room, &self.policy);
                room = (room + before).saturating_sub(node.tokens);
            }
        }
    }

    /// Drops summaries that no later epoch can use.
    fn drop_unusable_summaries(&mut self) {
        let folded_to = self.nodes.last().map(|node| node.range.last);
        let nodes = &self.nodes;
        self.model_summaries.retain(|hash, summary| {
            folded_to.is_none_or(|last| summary.range.first > last)
                || nodes.iter().any(|node| node.hash == *hash)
        });
    }

    /// The map is now in the head, so its entries in the history are masked, even among the newest ones.
    fn mask_maps(&mut self) {
        let is_map = |item: &&mut Item| item.kind == ItemKind::Map;
        let tail = self.tail.iter_mut().flat_map(|unit| &mut unit.items);
        self.tail_tokens -= tail.filter(is_map).map(Item::mask).sum::<u32>();
        let held = self.held.iter_mut().flat_map(|unit| &mut unit.items);
        for item in held.filter(is_map) {
            item.mask();
        }
    }

    /// Replaces old observations with one-line stubs, oldest first, until the view is small enough.
    fn mask(&mut self) {
        let spared = self.newest_from();
        let newest_success = self.newest_success();
        let mut tokens = self.tokens();
        for item in self.tail[..spared].iter_mut().flat_map(|unit| &mut unit.items) {
            if tokens <= self.policy.low {
                break;
            }
            if item.is_observation()
                && item.shown != DisplayMode::Masked
                && !is_fresh_error(item, newest_success)
            {
                let saved = item.mask();
                self.tail_tokens -= saved;
                tokens -= saved;
            }
        }
    }

    /// The newest result that is not an error.
    fn newest_success(&self) -> Option<EventId> {
        let items = self.tail.iter().flat_map(|unit| &unit.items);
        let successes = items.filter(|item| matches!(item.kind, ItemKind::Result { is_error: false, .. }));
        successes.map(|item| item.id).max()
    }

    /// The index of the first spared unit, which is not masked: the newest events, as many as the policy allows and
    /// as fit.
    pub(super) fn newest_from(&self) -> usize {
        let (mut events, mut tokens) = (0, 0_u32);
        let mut at = self.tail.len();
        while at > 0 {
            // A map is not an event that the model works on.
            let items = self.tail[at - 1].items.iter().filter(|item| item.kind != ItemKind::Map);
            let is_newest = events == 0;
            for item in items {
                events += 1;
                tokens = tokens.saturating_add(item.tokens);
            }
            if !is_newest && (events > self.policy.newest_events || tokens > self.policy.newest_tokens) {
                break;
            }
            at -= 1;
        }
        at
    }

    /// The index of the first unit that is not folded: like [`Self::newest_from`], but including all glued units.
    pub(super) fn spared_from(&self) -> usize {
        let mut at = self.newest_from();
        while at > 0 && at < self.tail.len() && self.tail[at].is_glued {
            at -= 1;
        }
        at
    }

    /// The end of the next chunk to fold into one summary: whole units of about the size that the policy sets.
    /// `None` if there are not enough units before the spared ones.
    pub(super) fn chunk_from(&self, start: usize, spared: usize) -> Option<usize> {
        chunk(&self.tail[start..spared.max(start)], &self.policy, self.tail.get(spared))
            .map(|length| start + length)
    }

    /// Folds the oldest chunks until the view is small enough.
    fn fold(&mut self) {
        let mut end = 0;
        while self.tokens() > self.policy.low {
            let Some(next) = self.chunk_from(end, self.spared_from()) else { break };
            // A chunk that does not shrink alone may shrink together with the following one.
            end = if self.fold_units(next) { 0 } else { next };
        }
    }

    /// How many of the oldest units, more than `least`, are clearly larger than their summary would be. Includes all
    /// glued units.
    fn worth_folding(&self, least: usize) -> usize {
        let (mut count, mut tokens) = (0, 0_u32);
        for unit in &self.tail {
            if count > least && tokens > self.policy.summary_tokens && !unit.is_glued {
                break;
            }
            tokens = tokens.saturating_add(unit.tokens());
            count += 1;
        }
        count
    }

    /// Folds the `count` oldest units into one summary if that makes the view smaller. People's messages stay as
    /// pins, which also takes tokens. Returns whether it folded.
    fn fold_units(&mut self, count: usize) -> bool {
        let Some(mut node) = Node::fold(&self.tail[..count], &self.policy) else { return false };
        let shown: u32 = self.tail[..count].iter().map(Unit::tokens).sum();
        let mut head = self.head.clone();
        self.tail[..count].iter().flat_map(|unit| &unit.items).for_each(|item| head.keep(item));
        head.refresh(&self.policy);
        let Some(most) = (self.head.tokens() + shown).checked_sub(head.tokens() + 1) else { return false };
        if node.tokens > most {
            return false;
        }
        if let Some(summary) = self.model_summaries.get(&node.hash) {
            node.adopt(summary, most, &self.policy);
        }
        self.tail.drain(..count);
        self.tail_tokens -= shown;
        self.head = head;
        self.nodes.push(node);
        summary_node::carry(&mut self.nodes, &self.policy);
        true
    }

    /// Reduces very large items to head and tail, oldest first, until the view is small enough.
    fn cut_giants(&mut self) {
        self.cut_all(self.policy.giant_tokens, self.policy.low);
    }

    fn cut_all(&mut self, most: u32, target: u32) {
        let mut tokens = self.tokens();
        let units = self
            .tail
            .iter_mut()
            .map(|unit| (unit, true))
            .chain(self.held.iter_mut().map(|unit| (unit, false)));
        for (unit, is_tail) in units {
            for item in unit.items.iter_mut().filter(|item| item.tokens > most) {
                if tokens <= target {
                    return;
                }
                let saved = item.cut(most);
                tokens -= saved;
                if is_tail {
                    self.tail_tokens -= saved;
                }
            }
        }
    }

    /// The last stages, for a view that is still over its budget.
    fn shrink_further(&mut self) {
        let high = self.policy.high;
        let mut most = self.policy.giant_tokens;
        while self.tokens() > high && most > MIN_CUT {
            most /= 2;
            self.cut_all(most.max(MIN_CUT), high);
        }
        if self.tokens() > high {
            let items = self.tail.iter_mut().flat_map(|unit| &mut unit.items);
            let saved: u32 = items.map(Item::drop_reasoning).sum();
            self.tail_tokens -= saved;
        }
        if self.tokens() > high && self.waiting().is_empty() {
            self.release();
        }
        // Folds even the newest units, a few at a time.
        let mut least = 0;
        while self.tokens() > high && least < self.tail.len() {
            if self.worth_folding(least) == self.tail.len() {
                let id = self.newest().unwrap_or(EventId(0));
                self.close_open(id);
            }
            let count = self.worth_folding(least);
            least = if self.fold_units(count) { 0 } else { count };
        }
    }
}

/// Whether the item is an error with no later success: the model is still working on it.
fn is_fresh_error(item: &Item, newest_success: Option<EventId>) -> bool {
    let is_error = matches!(item.kind, ItemKind::Result { is_error: true, .. });
    is_error && newest_success.is_none_or(|success| item.id > success)
}

/// The number of whole units at the start that form a chunk. `next` is the unit after them.
fn chunk(units: &[Unit], policy: &Policy, next: Option<&Unit>) -> Option<usize> {
    let mut tokens = 0_u32;
    for (at, unit) in units.iter().enumerate() {
        let with = tokens.saturating_add(unit.raw_tokens());
        if at > 0 && with > policy.chunk_tokens && !unit.is_glued {
            return Some(at);
        }
        tokens = with;
    }
    let is_whole = tokens >= policy.chunk_tokens && next.is_none_or(|unit| !unit.is_glued);
    (is_whole && !units.is_empty()).then_some(units.len())
}
