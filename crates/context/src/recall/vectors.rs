//! Optional vectors of events: a flat file with one byte per dimension, searched linearly. 25,000 events of 384
//! dimensions take 10 MB and a few milliseconds, so no graph index is needed.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::error::ContextError;
use crate::event_id::EventId;

const MAGIC: &[u8; 8] = b"csnvec01";
/// Event id and scale of a record.
const HEAD: usize = 8 + 4;

#[derive(Debug)]
pub(super) struct Vectors {
    path: PathBuf,
    dimensions: usize,
    ids: Vec<EventId>,
    /// The scale of each event's values.
    scales: Vec<f32>,
    values: Vec<i8>,
}

impl Vectors {
    pub(super) fn open(folder: &Path) -> Result<Self, ContextError> {
        let path = folder.join("vectors");
        let mut vectors =
            Self { path, dimensions: 0, ids: Vec::new(), scales: Vec::new(), values: Vec::new() };
        let mut bytes = Vec::new();
        match File::open(&vectors.path) {
            Ok(mut file) => file.read_to_end(&mut bytes).map_err(|source| vectors.failed("read", source))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vectors),
            Err(source) => return Err(vectors.failed("open", source)),
        };
        if bytes.len() < 12 || &bytes[..8] != MAGIC {
            return Err(ContextError::Damaged { path: vectors.path, what: "no vectors" });
        }
        vectors.dimensions = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
        if vectors.dimensions == 0 {
            return Err(ContextError::Damaged { path: vectors.path, what: "vectors without dimensions" });
        }
        // A partial record, left by a crash during a write, is ignored and overwritten by the next one.
        for record in bytes[12..].chunks_exact(HEAD + vectors.dimensions) {
            let (head, values) = record.split_at(HEAD);
            vectors.ids.push(EventId(u64::from_le_bytes(head[..8].try_into().unwrap_or_default())));
            vectors.scales.push(f32::from_le_bytes(head[8..].try_into().unwrap_or_default()));
            vectors.values.extend(values.iter().map(|byte| *byte as i8));
        }
        let whole = 12 + vectors.ids.len() * (HEAD + vectors.dimensions);
        if whole < bytes.len() {
            let file = OpenOptions::new().write(true).open(&vectors.path);
            file.and_then(|file| file.set_len(whole as u64))
                .map_err(|source| vectors.failed("shorten", source))?;
        }
        Ok(vectors)
    }

    pub(super) fn newest(&self) -> Option<EventId> {
        self.ids.last().copied()
    }

    /// Whether this vector cannot be compared with the stored ones, because it is of another length.
    pub(super) fn differ_from(&self, vector: &[f32]) -> bool {
        self.dimensions != 0 && self.dimensions != vector.len()
    }

    /// Deletes all vectors.
    pub(super) fn clear(&mut self) -> Result<(), ContextError> {
        match std::fs::remove_file(&self.path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(self.failed("remove", source));
            }
            _ => {}
        }
        self.dimensions = 0;
        self.ids.clear();
        self.scales.clear();
        self.values.clear();
        Ok(())
    }

    /// Stores vectors. Skips those whose length differs from the first one and returns how many were skipped.
    pub(super) fn add(&mut self, vectors: &[(EventId, Vec<f32>)]) -> Result<usize, ContextError> {
        let mut bytes = Vec::new();
        // The file may have a header without a record after a crash during the first write.
        let is_new_file = self.dimensions == 0;
        if is_new_file && let Some((_, first)) = vectors.iter().find(|(_, vector)| !vector.is_empty()) {
            self.dimensions = first.len();
            bytes.extend_from_slice(MAGIC);
            bytes.extend_from_slice(&u32::try_from(first.len()).unwrap_or(0).to_le_bytes());
        }
        let known = self.ids.len();
        let mut refused = 0;
        for (id, vector) in vectors {
            let is_new = self.ids.last().is_none_or(|newest| newest < id);
            if vector.len() != self.dimensions || vector.is_empty() || !is_new {
                refused += 1;
                continue;
            }
            let (scale, values) = quantise(vector);
            bytes.extend_from_slice(&id.0.to_le_bytes());
            bytes.extend_from_slice(&scale.to_le_bytes());
            bytes.extend(values.iter().map(|value| *value as u8));
            self.ids.push(*id);
            self.scales.push(scale);
            self.values.extend(values);
        }
        if self.ids.len() == known {
            return Ok(refused);
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path)
            .map_err(|source| self.failed("open", source))?;
        if let Err(source) = file.write_all(&bytes) {
            // Remove a partial write, so that the next records are not appended to it.
            let before = if is_new_file { 0 } else { 12 + known * (HEAD + self.dimensions) };
            let _ = file.set_len(before as u64);
            self.ids.truncate(known);
            self.scales.truncate(known);
            self.values.truncate(known * self.dimensions);
            self.dimensions = if is_new_file { 0 } else { self.dimensions };
            return Err(self.failed("write", source));
        }
        Ok(refused)
    }

    /// The events nearest to a vector, best first.
    pub(super) fn nearest(&self, vector: &[f32], most: usize) -> Vec<EventId> {
        if vector.len() != self.dimensions || self.dimensions == 0 {
            return Vec::new();
        }
        let (_, wanted) = quantise(vector);
        let dot = |values: &[i8]| -> i32 {
            values.iter().zip(&wanted).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
        };
        let products = self.values.chunks_exact(self.dimensions).map(dot);
        let scores = products.zip(&self.scales).map(|(product, scale)| product as f32 * scale);
        let mut scored: Vec<(f32, EventId)> = scores.zip(self.ids.iter().copied()).collect();
        scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
        scored.into_iter().take(most).map(|(_, id)| id).collect()
    }

    fn failed(&self, action: &'static str, source: std::io::Error) -> ContextError {
        ContextError::File { action, path: self.path.clone(), source }
    }
}

/// Normalizes a vector to length one and quantizes it: the scale, and one integer per dimension.
fn quantise(vector: &[f32]) -> (f32, Vec<i8>) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let largest = vector.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    if !length.is_finite() || length == 0.0 {
        return (0.0, vec![0; vector.len()]);
    }
    let step = largest / 127.0;
    (step / length, vector.iter().map(|value| (value / step).round().clamp(-127.0, 127.0) as i8).collect())
}
