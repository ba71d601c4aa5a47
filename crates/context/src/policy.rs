//! All constants of the engine. Each is the smaller of a fixed value and a fraction of the budget, so that a window
//! of 4k tokens works by the same rules as one of a million.
//!
//! All numbers are tokens by our count unless the name says otherwise.

use crate::entry::{Factor, Window};
use crate::error::ContextError;

/// The version of the rules that build a view. Every change that alters any view increases it.
pub const POLICY_VERSION: u32 = 4;

/// The smallest budget that the engine accepts.
pub const MIN_BUDGET: u32 = 2048;

/// The smallest budget, by our count, that rejected prompts and the provider's usage can lead to.
pub const MIN_TIGHTENED_BUDGET: u32 = 1024;

/// What the engine needs besides the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The maximum size of a prompt, by the provider's count: its window minus the room for the answer.
    pub budget_tokens: u32,
    /// What the provider counts for 1,000 of our tokens, until a correction in the log replaces it.
    pub factor: Factor,
    pub fixed: Fixed,
}

/// The caller's part of every prompt, by our count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fixed {
    /// Tokens of the system prompt.
    pub system_tokens: u32,
    /// Tokens of all tool specifications.
    pub tools_tokens: u32,
}

impl Fixed {
    pub fn tokens(&self) -> u32 {
        self.system_tokens.saturating_add(self.tools_tokens)
    }
}

/// The constants for one budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The budget: a view is never larger.
    pub budget: u32,
    /// The high watermark, which triggers an epoch: the budget minus the room for the volatile end.
    pub high: u32,
    /// The low watermark, to which an epoch shrinks the view if it can.
    pub low: u32,
    /// From this size on, summaries are requested in the background.
    pub ahead: u32,
    /// Reserved for the volatile end.
    pub volatile_tokens: u32,
    /// The limit for system prompt, tools, pins, plan, notes and map together.
    pub fixed_tokens: u32,
    /// The limit for system prompt and tools.
    pub caller_tokens: u32,
    /// The limit for the task, people's messages, plan and notes.
    pub pin_tokens: u32,
    /// The limit for the repository map.
    pub map_tokens: u32,
    /// How many of the newest events are neither masked nor folded.
    pub newest_events: usize,
    /// The newest events are spared only while they fit into this limit.
    pub newest_tokens: u32,
    /// Approximate size of the chunk that is folded into one summary.
    pub chunk_tokens: u32,
    /// The limit for one summary.
    pub summary_tokens: u32,
    /// The limit for all summaries together.
    pub summaries_tokens: u32,
    /// How many summaries of a level are merged into one of the next.
    pub carry: usize,
    /// A larger item may be cut to this size.
    pub giant_tokens: u32,
}

impl Policy {
    /// The constants for a budget by our count.
    pub fn new(budget: u32, fixed: Fixed) -> Self {
        let volatile_tokens = (budget / 20).min(1_000);
        let high = budget - volatile_tokens;
        let fixed_tokens = budget / 5 * 2;
        let left = fixed_tokens.saturating_sub(fixed.tokens());
        let map_tokens = (budget / 25).min(4_000).min(left / 3);
        Self {
            budget,
            high,
            low: budget / 2,
            ahead: high / 5 * 3,
            volatile_tokens,
            fixed_tokens,
            caller_tokens: budget / 4,
            pin_tokens: (left - map_tokens).min(20_000),
            map_tokens,
            newest_events: 20,
            newest_tokens: budget / 4,
            chunk_tokens: (budget / 8).min(8_000),
            summary_tokens: (budget / 32).min(400),
            summaries_tokens: (budget / 6).min(24_000),
            carry: 8,
            giant_tokens: (budget / 16).min(8_000),
        }
    }

    /// The token limit for tool specifications, given the system prompt: small windows get fewer tools.
    pub fn tools_allowance(&self, system_tokens: u32) -> u32 {
        self.caller_tokens.saturating_sub(system_tokens)
    }

    /// How many of the tools, most important first, fit beside the system prompt.
    pub fn tools_that_fit(&self, system_tokens: u32, tools: &[u32]) -> usize {
        let allowance = self.tools_allowance(system_tokens);
        let mut sum = 0_u32;
        tools
            .iter()
            .take_while(|tokens| {
                sum = sum.saturating_add(**tokens);
                sum <= allowance
            })
            .count()
    }
}

impl Window {
    /// Rejects a log that was written with newer rules than this program knows. Older logs are read with the current
    /// rules.
    ///
    /// # Errors
    /// The version is newer than [`POLICY_VERSION`].
    pub fn check_version(&self) -> Result<(), ContextError> {
        if self.policy_version > POLICY_VERSION {
            return Err(ContextError::PolicyVersion { version: self.policy_version, known: POLICY_VERSION });
        }
        Ok(())
    }
}

impl From<&Window> for Settings {
    /// The initial settings of an engine whose log begins with this window.
    fn from(window: &Window) -> Self {
        let fixed = Fixed { system_tokens: window.system_tokens, tools_tokens: window.tools_tokens };
        Self { budget_tokens: window.budget_tokens, factor: window.factor.unwrap_or(Factor::ONE), fixed }
    }
}

impl Settings {
    /// The budget by our count.
    pub fn our_budget(&self) -> u32 {
        self.factor.ours(self.budget_tokens)
    }

    /// The constants before the first entry. Callers also use them to select the tools.
    pub fn policy(&self) -> Policy {
        Policy::new(self.our_budget(), self.fixed)
    }

    /// Validates the settings.
    ///
    /// # Errors
    /// The budget is below [`MIN_BUDGET`], or system prompt and tools exceed their share.
    pub fn check(&self) -> Result<Policy, ContextError> {
        let policy = self.policy();
        if policy.budget < MIN_BUDGET {
            return Err(ContextError::BudgetTooSmall { tokens: policy.budget, least: MIN_BUDGET });
        }
        if self.fixed.tokens() > policy.caller_tokens {
            return Err(ContextError::FixedTooLarge {
                system: self.fixed.system_tokens,
                tools: self.fixed.tools_tokens,
                allowed: policy.caller_tokens,
            });
        }
        Ok(policy)
    }
}
