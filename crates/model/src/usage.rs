//! Token usage of model requests.

use serde::{Deserialize, Serialize};

/// Token counts. They do not overlap: the total input is `input + cached_input + cache_write`.
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
        self.input + self.cached_input + self.cache_write
    }

    /// Total input and output.
    pub fn total(&self) -> u64 {
        self.prompt() + self.output
    }
}

impl std::ops::Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            input: self.input + other.input,
            cached_input: self.cached_input + other.cached_input,
            cache_write: self.cache_write + other.cache_write,
            output: self.output + other.output,
            reasoning: self.reasoning + other.reasoning,
        }
    }
}
