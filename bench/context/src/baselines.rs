//! The strategies that the context engine is compared with, on the same input and by the token counts of the events
//! only. Each produces its prompt as pieces of key and token count; a piece that changes gets another key.

use context::{Entry, EntryBody};

/// Tokens of the placeholder for a masked observation.
const MASK_TOKENS: u32 = 20;
/// Tokens of a condenser's summary.
const SUMMARY_TOKENS: u32 = 600;

/// The parts of an event that a strategy looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) tokens: u32,
    pub(crate) is_observation: bool,
}

impl Event {
    pub(crate) fn of(entry: &Entry) -> Self {
        Self { tokens: entry.tokens, is_observation: matches!(entry.body, EntryBody::Result(_)) }
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Strategy {
    /// Shows everything, always.
    Raw,
    /// Shows only the newest `shown` observations.
    LastObservations { shown: usize },
    /// Condenses the history when it has more than `most` events: keeps the first few, then a summary, then the newer
    /// half.
    SummariseHalf { most: usize, first: usize, kept_from: usize, summaries: u32 },
}

/// A piece of a prompt: its key and its tokens.
pub(crate) type Piece = (u64, u32);

impl Strategy {
    pub(crate) fn name(&self) -> String {
        match self {
            Strategy::Raw => "raw history".to_owned(),
            Strategy::LastObservations { shown } => format!("observation masking, last {shown}"),
            Strategy::SummariseHalf { most, first, .. } => {
                format!("summarise half, {most} events, first {first}")
            }
        }
    }

    /// Builds the prompt after these events.
    pub(crate) fn prompt(&mut self, events: &[Event], out: &mut Vec<Piece>) {
        out.clear();
        let key = |at: usize, form: u64| (at as u64) << 2 | form;
        match self {
            Strategy::Raw => {
                out.extend(events.iter().enumerate().map(|(at, event)| (key(at, 0), event.tokens)))
            }
            Strategy::LastObservations { shown } => {
                let all = events.iter().filter(|event| event.is_observation).count();
                let mut masked = all.saturating_sub(*shown);
                for (at, event) in events.iter().enumerate() {
                    if event.is_observation && masked > 0 {
                        masked -= 1;
                        out.push((key(at, 1), event.tokens.min(MASK_TOKENS)));
                    } else {
                        out.push((key(at, 0), event.tokens));
                    }
                }
            }
            Strategy::SummariseHalf { most, first, kept_from, summaries } => {
                let shown = *first
                    + usize::from(*summaries > 0)
                    + events.len().saturating_sub((*kept_from).max(*first));
                if shown > *most {
                    *kept_from = events.len() - (*most / 2 - *first - 1);
                    *summaries += 1;
                }
                let head = events.iter().enumerate().take(*first);
                out.extend(head.map(|(at, event)| (key(at, 0), event.tokens)));
                if *summaries > 0 {
                    out.push((u64::from(*summaries) << 2 | 2, SUMMARY_TOKENS));
                }
                let rest = events.iter().enumerate().skip((*kept_from).max(*first));
                out.extend(rest.map(|(at, event)| (key(at, 0), event.tokens)));
            }
        }
    }
}

/// Token totals over all prompts of a strategy.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Cost {
    pub(crate) prompts: u64,
    pub(crate) tokens: u64,
    pub(crate) largest: u64,
    /// Tokens in the prefix shared with the previous prompt.
    pub(crate) cached: u64,
}

impl Cost {
    /// Adds the next prompt to the totals.
    pub(crate) fn take(&mut self, before: &[Piece], now: &[Piece]) {
        let same = before.iter().zip(now).take_while(|(a, b)| a == b);
        self.cached += same.map(|(_, (_, tokens))| u64::from(*tokens)).sum::<u64>();
        let tokens = now.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
        self.tokens += tokens;
        self.largest = self.largest.max(tokens);
        self.prompts += 1;
    }

    pub(crate) fn hit(&self) -> f64 {
        self.cached as f64 / self.tokens.max(1) as f64
    }

    /// Uncached tokens plus a tenth of the cached ones, in millions.
    pub(crate) fn relative(&self) -> f64 {
        ((self.tokens - self.cached) as f64 + 0.1 * self.cached as f64) / 1e6
    }
}
