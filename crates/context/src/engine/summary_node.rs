//! Summary nodes: the result of folding events, and of merging several nodes of one level into one of the next.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::extract::{self, Line};
use super::unit::{self, Unit};
use crate::entry::Summary;
use crate::event_id::EventRange;
use crate::policy::Policy;
use crate::tokens;
use crate::view::{Author, Content, Segment, SegmentKind};

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) range: EventRange,
    pub(super) level: u8,
    /// Hash of the covered content, independent of the summary's text.
    pub(super) hash: String,
    pub(super) author: Author,
    pub(super) text: Arc<str>,
    pub(super) tokens: u32,
    /// What the events cost before any shrinking.
    pub(super) tokens_folded: u64,
    /// The extract's lines, from which the extract of a higher level is built.
    pub(super) lines: Vec<Line>,
    /// The texts to send to a model for summarizing, for levels above the first.
    pub(super) sources: Option<Arc<str>>,
}

impl Node {
    /// Folds units. Returns `None` unless the node is smaller than the units as shown.
    pub(super) fn fold(units: &[Unit], policy: &Policy) -> Option<Self> {
        let range = unit::range_of(units.iter())?;
        let shown: u32 = units.iter().map(Unit::tokens).sum();
        let most = policy.summary_tokens.min(shown.saturating_sub(1));
        let tokens_folded = units.iter().map(|unit| u64::from(unit.raw_tokens())).sum();
        let lines = extract::lines_of(units.iter());
        let extract = extract::compose(range, 1, tokens_folded, &lines, most);
        let node = Self {
            range,
            level: 1,
            hash: unit::hash_of(units.iter()),
            author: Author::Extract,
            text: extract.text.into(),
            tokens: extract.tokens,
            tokens_folded,
            lines: extract.lines,
            sources: None,
        };
        (node.tokens < shown).then_some(node)
    }

    /// Merges adjacent nodes into one. Returns `None` unless it is smaller than they are.
    pub(super) fn merge(nodes: &[Node], level: u8, policy: &Policy) -> Option<Self> {
        let (first, last) = (nodes.first()?, nodes.last()?);
        let range = EventRange { first: first.range.first, last: last.range.last };
        let shown: u32 = nodes.iter().map(|node| node.tokens).sum();
        let most = policy.summary_tokens.min(shown.saturating_sub(1));
        let tokens_folded = nodes.iter().map(|node| node.tokens_folded).sum();
        let lines = extract::merge(nodes.iter().map(|node| node.lines.as_slice()));
        let extract = extract::compose(range, level, tokens_folded, &lines, most);
        let mut hash = Sha256::new();
        nodes.iter().for_each(|node| hash.update(node.hash.as_bytes()));
        let sources: Vec<&str> = nodes.iter().map(|node| &*node.text).collect();
        let node = Self {
            range,
            level,
            hash: crate::output_cap::hexadecimal(&hash.finalize()),
            author: Author::Extract,
            text: extract.text.into(),
            tokens: extract.tokens,
            tokens_folded,
            lines: extract.lines,
            sources: Some(sources.join("\n\n").into()),
        };
        (node.tokens < shown).then_some(node)
    }

    /// Adopts a model's summary of the same events if it is within the limit for summaries and takes at most `most`
    /// tokens.
    pub(super) fn adopt(&mut self, summary: &Summary, most: u32, policy: &Policy) {
        let text = heading(self.range) + summary.text.trim();
        let tokens = tokens::count(&text) + tokens::MESSAGE_OVERHEAD;
        let is_same = summary.range == self.range && summary.input_hash == self.hash;
        if is_same && tokens <= policy.summary_tokens.min(most) {
            (self.text, self.tokens, self.author) = (text.into(), tokens, Author::Model);
        }
    }

    pub(super) fn segment(&self) -> Segment {
        Segment {
            kind: SegmentKind::Summary { level: self.level, author: self.author },
            covers: Some(self.range),
            tokens: self.tokens,
            content: Content::text(Arc::clone(&self.text)),
        }
    }
}

/// The heading of a model's summary.
fn heading(range: EventRange) -> String {
    format!("Summary of events [{range}]\n")
}

/// The token limit for a model's summary of these events: the limit for summaries minus the heading.
pub(super) fn max_tokens(range: EventRange, policy: &Policy) -> u32 {
    policy.summary_tokens.saturating_sub(tokens::count(&heading(range)) + tokens::MESSAGE_OVERHEAD)
}

pub(super) fn tokens_of(nodes: &[Node]) -> u32 {
    nodes.iter().map(|node| node.tokens).sum()
}

/// Merges every full set of nodes of a level. If all nodes together are still too large, also merges the oldest
/// ones. Each step leaves fewer nodes, so the loop ends.
pub(super) fn carry(nodes: &mut Vec<Node>, policy: &Policy) {
    while let Some((at, level)) = full_level(nodes, policy.carry) {
        let Some(merged) = Node::merge(&nodes[at..at + policy.carry], level.saturating_add(1), policy) else {
            break;
        };
        nodes.splice(at..at + policy.carry, [merged]);
    }
    while nodes.len() > 1 && tokens_of(nodes) > policy.summaries_tokens {
        let count = nodes.len().min(policy.carry);
        let level = match (nodes[0].level, nodes[1].level) {
            // The oldest node absorbs the next one, because otherwise levels would grow without limit.
            (oldest, next) if oldest > next => oldest,
            (oldest, _) => oldest.saturating_add(1),
        };
        let Some(merged) = Node::merge(&nodes[..count], level, policy) else { break };
        nodes.splice(..count, [merged]);
    }
}

/// The start of the oldest full set of one level. Levels never increase from oldest to newest, so each level is one
/// run.
fn full_level(nodes: &[Node], carry: usize) -> Option<(usize, u8)> {
    let mut at = 0;
    while at < nodes.len() {
        let level = nodes[at].level;
        let run = nodes[at..].iter().take_while(|node| node.level == level).count();
        if run >= carry && level < u8::MAX {
            return Some((at, level));
        }
        at += run;
    }
    None
}
