//! Token usage of model requests.

use serde::{Deserialize, Serialize};

/// Token counts as a provider reports them, so sums saturate. They do not overlap: the total input is `input + cached_input + cache_write`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Uncached input.
    pub input: u64,
    /// Input read from the provider's cache.
    pub cached_input: u64,
    /// Uncached input that was written to the cache.
    pub cache_write: u64,
    /// Output, including reasoning.
    pub output: u64,
    /// The part of `output` that is reasoning, if the provider reports it.
    pub reasoning: u64,
}

impl Usage {
    /// Total input.
    pub fn prompt(&self) -> u64 {
        self.input.saturating_add(self.cached_input).saturating_add(self.cache_write)
    }

    /// Total input and output.
    pub fn total(&self) -> u64 {
        self.prompt().saturating_add(self.output)
    }
}

impl std::ops::Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            cached_input: self.cached_input.saturating_add(other.cached_input),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            output: self.output.saturating_add(other.output),
            reasoning: self.reasoning.saturating_add(other.reasoning),
        }
    }
}
