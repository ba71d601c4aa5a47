//! Ranks files like PageRank: a file's rank comes from the files that refer to it.

use std::collections::{BTreeMap, HashMap};

use super::Parsed;

const DAMPING: f64 = 0.85;
const ROUNDS: usize = 30;
/// Weight of a name that occurs in the task, relative to other names.
const FOCUS_WEIGHT: f64 = 20.0;

/// Ranks of files, by index, and of definitions, by name.
pub(super) struct Ranked {
    pub(super) files: Vec<f64>,
    pub(super) definitions: HashMap<String, f64>,
}

pub(super) fn rank(parsed: &[Parsed<'_>], focus: &BTreeMap<&str, u32>) -> Ranked {
    let mut defined: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, file) in parsed.iter().enumerate() {
        for definition in &file.definitions {
            let places = defined.entry(&definition.name).or_default();
            if places.last() != Some(&at) {
                places.push(at);
            }
        }
    }
    let edges = edges(parsed, &defined, focus);
    let start = start(parsed, focus);
    let mut ranks = start.clone();
    for _ in 0..ROUNDS {
        let mut next: Vec<f64> = start.iter().map(|share| (1.0 - DAMPING) * share).collect();
        for (from, outgoing) in edges.iter().enumerate() {
            let sum: f64 = outgoing.iter().map(|edge| edge.weight).sum();
            if sum == 0.0 {
                // A file without references distributes its rank to all files.
                for (to, share) in start.iter().enumerate() {
                    next[to] += DAMPING * ranks[from] * share;
                }
                continue;
            }
            for edge in outgoing {
                next[edge.to] += DAMPING * ranks[from] * edge.weight / sum;
            }
        }
        ranks = next;
    }
    let mut definitions: HashMap<String, f64> = HashMap::new();
    for (from, outgoing) in edges.iter().enumerate() {
        for edge in outgoing {
            *definitions.entry(edge.name.to_owned()).or_default() += ranks[from] * edge.weight;
        }
    }
    for (name, score) in &mut definitions {
        if focus.contains_key(name.as_str()) {
            *score *= FOCUS_WEIGHT;
        }
    }
    Ranked { files: ranks, definitions }
}

struct Edge<'a> {
    to: usize,
    name: &'a str,
    weight: f64,
}

/// Edges from each file to the files that define the names it mentions. A name that many files define gets little
/// weight.
fn edges<'a>(
    parsed: &'a [Parsed<'_>],
    defined: &BTreeMap<&'a str, Vec<usize>>,
    focus: &BTreeMap<&str, u32>,
) -> Vec<Vec<Edge<'a>>> {
    let outgoing = |(from, file): (usize, &'a Parsed<'_>)| {
        let mut edges = Vec::new();
        for (name, count) in &file.names {
            let Some(places) = defined.get(name).filter(|places| places.len() <= 10) else { continue };
            let focus_weight = if focus.contains_key(name) { FOCUS_WEIGHT } else { 1.0 };
            let weight = f64::from(*count).sqrt() * focus_weight / places.len() as f64;
            edges.extend(places.iter().filter(|to| **to != from).map(|to| Edge { to: *to, name, weight }));
        }
        edges
    };
    parsed.iter().enumerate().map(outgoing).collect()
}

/// The start distribution: uniform, with more weight on files that the task mentions.
fn start(parsed: &[Parsed<'_>], focus: &BTreeMap<&str, u32>) -> Vec<f64> {
    let initial_weight = |file: &Parsed<'_>| {
        let is_defined =
            file.definitions.iter().any(|definition| focus.contains_key(definition.name.as_str()));
        let stem = file.path.rsplit('/').next().and_then(|name| name.split('.').next()).unwrap_or_default();
        if is_defined || (stem.len() > 2 && focus.contains_key(stem)) { FOCUS_WEIGHT } else { 1.0 }
    };
    let weights: Vec<f64> = parsed.iter().map(initial_weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}
