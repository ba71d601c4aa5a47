//! A job's budget, what it has spent and what is left. Pure.

mod request;

pub(crate) use request::{answer_tokens, covers_requests, output_limit};

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// With this many turns left, the status asks the model to finish. What a turn costs is the average so far.
const LAST_TURNS: u64 = 3;

/// What a job may spend; a field that is absent is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// US dollars for model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money_usd: Option<f64>,
    /// Input and output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Model turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Tool calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// Working time in seconds; waiting for people does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<u64>,
}

/// What a job has spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Spent {
    /// Thousand-millionths of a US dollar.
    #[serde(default)]
    pub cost_nanodollars: u64,
    /// Tokens read.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens written.
    #[serde(default)]
    pub output_tokens: u64,
    /// Tokens read that the provider had in its cache; part of the tokens read.
    #[serde(default)]
    pub cached_tokens: u64,
    /// Model turns.
    #[serde(default)]
    pub turns: u64,
    /// Tool calls.
    #[serde(default)]
    pub tool_calls: u64,
}

impl Spent {
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a sum of money that a double holds exactly enough")]
    pub fn money_usd(&self) -> f64 {
        self.cost_nanodollars as f64 / 1e9
    }
}

/// The maximum of tokens, turns and tool calls.
pub const MAX_BUDGET_COUNT: u64 = 1_000_000_000_000_000;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a sum between 0 and a million dollars"
)]
fn nanodollars(money_usd: f64) -> u64 {
    (money_usd.clamp(0.0, MAX_MONEY_USD) * 1e9) as u64
}

const MAX_MONEY_USD: f64 = 1_000_000.0;
/// The maximum working time, 30 days: the maximum lifetime of a job.
const MAX_WALL_S: u64 = 30 * 24 * 3600;

impl Budget {
    /// Validates a user-supplied budget.
    ///
    /// # Errors
    /// The invalid field and the allowed range.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if let Some(money) = self.money_usd
            && !(0.0..=MAX_MONEY_USD).contains(&money)
        {
            return Err(("money_usd", format!("{money} is not between 0 and {MAX_MONEY_USD}")));
        }
        if let Some(seconds) = self.wall_s
            && seconds > MAX_WALL_S
        {
            return Err(("wall_s", format!("{seconds} is more than {MAX_WALL_S} seconds (30 days)")));
        }
        let counts = [("tokens", self.tokens), ("turns", self.turns), ("tool_calls", self.tool_calls)];
        for (field, count) in counts {
            if let Some(count) = count.filter(|count| *count > MAX_BUDGET_COUNT) {
                return Err((field, format!("{count} is more than {MAX_BUDGET_COUNT}")));
            }
        }
        Ok(())
    }

    /// Merges two budgets: fields that are set in `over` win.
    #[must_use]
    pub fn overridden_by(self, over: Self) -> Self {
        Self {
            money_usd: over.money_usd.or(self.money_usd),
            tokens: over.tokens.or(self.tokens),
            turns: over.turns.or(self.turns),
            tool_calls: over.tool_calls.or(self.tool_calls),
            wall_s: over.wall_s.or(self.wall_s),
        }
    }

    /// The first limit that is reached, as human-readable text; `None` while no limit is reached.
    #[must_use]
    pub fn reached(&self, spent: &Spent, worked_s: u64) -> Option<String> {
        if let Some(money) = self.money_usd
            && spent.money_usd() >= money
        {
            return Some(format!("${:.4} of ${money:.4} are spent", spent.money_usd()));
        }
        let counted = [
            ("tokens", self.tokens, spent.tokens()),
            ("turns", self.turns, spent.turns),
            ("tool calls", self.tool_calls, spent.tool_calls),
            ("seconds of work", self.wall_s, worked_s),
        ];
        counted.into_iter().find_map(|(name, limit, used)| {
            limit.filter(|limit| used >= *limit).map(|limit| format!("{used} of {limit} {name} are used"))
        })
    }

    #[must_use]
    pub fn tool_calls_left(&self, spent: &Spent) -> u64 {
        self.tool_calls.map_or(u64::MAX, |limit| limit.saturating_sub(spent.tool_calls))
    }

    /// Whether so little is left that the work must be brought to its end.
    #[must_use]
    pub fn is_nearly_used(&self, spent: &Spent, worked_s: u64) -> bool {
        let last_turns_cost = |used: u64| match spent.turns {
            0 => 0,
            turns => (used / turns).saturating_mul(LAST_TURNS),
        };
        let is_low = |limit: Option<u64>, used: u64, reserve: u64| {
            limit.is_some_and(|limit| limit.saturating_sub(used) <= reserve)
        };
        let money = self.money_usd.map(nanodollars);
        is_low(self.turns, spent.turns, LAST_TURNS)
            || is_low(self.tool_calls, spent.tool_calls, LAST_TURNS)
            || is_low(self.tokens, spent.tokens(), last_turns_cost(spent.tokens()))
            || is_low(money, spent.cost_nanodollars, last_turns_cost(spent.cost_nanodollars))
            || is_low(self.wall_s, worked_s, last_turns_cost(worked_s))
    }

    /// What is left, as one line for the model; empty if nothing is limited.
    #[must_use]
    pub fn left_text(&self, spent: &Spent, worked_s: u64) -> String {
        let mut text = String::new();
        let mut add = |part: String| {
            let _ = write!(text, "{}{part}", if text.is_empty() { "" } else { ", " });
        };
        if let Some(turns) = self.turns {
            let left = turns.saturating_sub(spent.turns);
            add(format!("{left} {}", if left == 1 { "turn" } else { "turns" }));
        }
        if let Some(calls) = self.tool_calls {
            let left = calls.saturating_sub(spent.tool_calls);
            add(format!("{left} tool {}", if left == 1 { "call" } else { "calls" }));
        }
        if let Some(tokens) = self.tokens {
            add(format!("{} tokens", tokens.saturating_sub(spent.tokens())));
        }
        if let Some(money) = self.money_usd {
            add(format!("${:.2}", (money - spent.money_usd()).max(0.0)));
        }
        if let Some(seconds) = self.wall_s {
            add(format!("{} min of work", seconds.saturating_sub(worked_s).div_ceil(60)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn first_reached_limit_is_named_with_its_numbers() {
        let budget = Budget { turns: Some(3), tokens: Some(100), ..Budget::default() };
        let spent = Spent { turns: 3, input_tokens: 20, ..Spent::default() };
        assert_eq!(budget.reached(&spent, 0).unwrap(), "3 of 3 turns are used");
        let money = Budget { money_usd: Some(0.5), ..Budget::default() };
        let spent = Spent { cost_nanodollars: 500_000_000, ..Spent::default() };
        assert_eq!(money.reached(&spent, 0).unwrap(), "$0.5000 of $0.5000 are spent");
        assert_eq!(Budget::default().reached(&spent, 1 << 40), None);
    }

    #[test]
    fn remaining_budget_is_one_line() {
        let budget = Budget { turns: Some(30), money_usd: Some(1.0), wall_s: Some(600), ..Budget::default() };
        let spent = Spent { turns: 4, cost_nanodollars: 250_000_000, ..Spent::default() };
        assert_eq!(budget.left_text(&spent, 61), "26 turns, $0.75, 9 min of work");
    }

    #[test]
    fn any_budget_is_nearly_used_when_three_turns_would_use_it_up() {
        let spent = Spent {
            turns: 10,
            tool_calls: 20,
            input_tokens: 10_000,
            cost_nanodollars: 1_000_000_000,
            ..Spent::default()
        };
        let is_low = |budget: Budget| budget.is_nearly_used(&spent, 600);
        let none = Budget::default();
        for (low, enough) in [
            (Budget { turns: Some(13), ..none }, Budget { turns: Some(14), ..none }),
            (Budget { tool_calls: Some(23), ..none }, Budget { tool_calls: Some(24), ..none }),
            (Budget { tokens: Some(13_000), ..none }, Budget { tokens: Some(13_001), ..none }),
            (Budget { money_usd: Some(1.3), ..none }, Budget { money_usd: Some(1.31), ..none }),
            (Budget { wall_s: Some(780), ..none }, Budget { wall_s: Some(781), ..none }),
        ] {
            assert!(is_low(low) && !is_low(enough), "{low:?}");
        }
        assert!(!none.is_nearly_used(&spent, 600));
        assert!(
            !Budget { tokens: Some(100), ..none }.is_nearly_used(&Spent::default(), 0),
            "nothing is known yet"
        );
    }

    proptest! {
        #[test]
        fn a_larger_budget_is_never_reached_earlier(turns in 0u64..1000, more in 0u64..1000, used in 0u64..2000) {
            let spent = Spent { turns: used, ..Spent::default() };
            let small = Budget { turns: Some(turns), ..Budget::default() };
            let large = Budget { turns: Some(turns + more), ..Budget::default() };
            prop_assert!(large.reached(&spent, 0).is_none() || small.reached(&spent, 0).is_some());
        }
    }
}
