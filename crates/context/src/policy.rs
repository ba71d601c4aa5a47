//! Every constant of the engine, each the smaller of a value and a fraction of the budget, so that a window of 4k tokens
//! works by the same rules as one of a million.
//!
//! All numbers are tokens by our count unless the name says otherwise.

use crate::entry::{Factor, Window};
use crate::error::ContextError;

/// Names the rules by which a view is made. A change that alters any view gets a new number.
pub const POLICY_VERSION: u32 = 3;

/// The smallest budget that the engine accepts.
pub const LEAST_BUDGET: u32 = 2048;

/// The smallest that refused prompts and what a provider's usage teaches make of a budget, by our count.
pub const LEAST_ROOM: u32 = 1024;

/// What the engine needs to know beside the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The most that a prompt may be, by the provider's count: its window less the room for the answer.
    pub budget_tokens: u32,
    /// What the provider counts for 1,000 of our tokens, until a correction in the log says otherwise.
    pub factor: Factor,
    /// What the caller puts in front of everything.
    pub fixed: Fixed,
}

/// The caller's own part of every prompt, by our count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fixed {
    /// The system prompt.
    pub system_tokens: u32,
    /// All tool specifications.
    pub tools_tokens: u32,
}

impl Fixed {
    /// Both together.
    pub fn tokens(&self) -> u32 {
        self.system_tokens.saturating_add(self.tools_tokens)
    }
}

/// The constants for one budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The budget: a view is never larger.
    pub budget: u32,
    /// Crossing it begins an epoch: the budget less what is kept for the volatile end.
    pub high: u32,
    /// What an epoch shrinks the view to, if it can.
    pub low: u32,
    /// From here on summaries are made ahead of time.
    pub ahead: u32,
    /// Kept free for the volatile end.
    pub volatile_tokens: u32,
    /// The most that system prompt, tools, pins, plan, notes and map take together.
    pub fixed_tokens: u32,
    /// The most that system prompt and tools take.
    pub caller_tokens: u32,
    /// The most that the task, people's messages, plan and notes take.
    pub pin_tokens: u32,
    /// The most that the repository map takes.
    pub map_tokens: u32,
    /// How many of the newest events are neither masked nor folded.
    pub newest_events: usize,
    /// The newest events are spared only as far as they fit into this.
    pub newest_tokens: u32,
    /// About how much is folded into one summary.
    pub chunk_tokens: u32,
    /// The most that one summary takes.
    pub summary_tokens: u32,
    /// The most that all summaries take.
    pub summaries_tokens: u32,
    /// So many summaries of a level become one of the next.
    pub carry: usize,
    /// An item larger than this is a giant and may be cut to it.
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

    /// The most that tool specifications may take beside a system prompt: small windows get fewer tools.
    pub fn tools_allowance(&self, system_tokens: u32) -> u32 {
        self.caller_tokens.saturating_sub(system_tokens)
    }

    /// How many of the tools, most important first, fit beside a system prompt.
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

impl From<&Window> for Settings {
    /// What an engine starts with whose log names this window first.
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

    /// The constants, before anything is in the log. Also tells how many tools fit, before they are chosen.
    pub fn policy(&self) -> Policy {
        Policy::new(self.our_budget(), self.fixed)
    }

    /// Refuses a budget that nothing can work with.
    ///
    /// # Errors
    /// A budget below [`LEAST_BUDGET`]; a system prompt and tools that take more than their share.
    pub fn check(&self) -> Result<Policy, ContextError> {
        let policy = self.policy();
        if policy.budget < LEAST_BUDGET {
            return Err(ContextError::BudgetTooSmall { tokens: policy.budget, least: LEAST_BUDGET });
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
