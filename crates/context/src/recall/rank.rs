//! Scores: BM25 for words, and reciprocal rank fusion to combine it with vectors.

use std::collections::BTreeMap;

use crate::event_id::EventId;

const BM25_K1: f32 = 1.2;
const BM25_B: f32 = 0.5;
/// A document counts as at most this many times the average length.
const MAX_LENGTH_RATIO: f32 = 4.0;

/// The constant of reciprocal rank fusion.
pub const RECIPROCAL_K: f32 = 60.0;

/// How specific a word is: its inverse document frequency.
pub(super) fn idf(documents: u64, with_word: u64) -> f32 {
    let (all, with) = (documents as f32, with_word as f32);
    (1.0 + (all - with + 0.5).max(0.0) / (with + 0.5)).ln()
}

/// What a word adds to a document's score.
pub(super) fn weight(idf: f32, count: u32, length: u32, average: f32) -> f32 {
    let count = count as f32;
    // Outputs can have any length. Without a limit, words in a very long one could never be found.
    let ratio = (length as f32 / average.max(1.0)).min(MAX_LENGTH_RATIO);
    let norm = BM25_K1 * (1.0 - BM25_B + BM25_B * ratio);
    idf * count * (BM25_K1 + 1.0) / (count + norm)
}

/// Fuses several rankings, each best first: an entry gets 1 / (60 + rank) from each.
pub fn fuse(rankings: &[Vec<EventId>]) -> Vec<(EventId, f32)> {
    let mut scores: BTreeMap<EventId, f32> = BTreeMap::new();
    for ranking in rankings {
        for (rank, id) in ranking.iter().enumerate() {
            *scores.entry(*id).or_default() += 1.0 / (RECIPROCAL_K + rank as f32 + 1.0);
        }
    }
    let mut fused: Vec<(EventId, f32)> = scores.into_iter().collect();
    // Among equal scores, the newer event is more useful.
    fused.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    fused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fusion_ranks_entries_of_both_rankings_first() {
        let ids = |numbers: &[u64]| numbers.iter().copied().map(EventId).collect::<Vec<_>>();
        let fused = fuse(&[ids(&[1, 2, 3]), ids(&[4, 3, 5])]);
        assert_eq!(fused[0].0, EventId(3));
        assert_eq!(fused.len(), 5);
    }
}
