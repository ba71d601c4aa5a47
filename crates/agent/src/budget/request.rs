//! Checks that the budget covers a model request before it is sent. Pure functions.

use model::{ModelLimits, Money, Usage};

use super::{Budget, Spent};

/// If the budget leaves fewer output tokens than this, the request is not sent.
const MIN_ANSWER_TOKENS: u32 = 200;
/// Our count of a prompt may be this much too low, one part in so many.
const PROMPT_MARGIN_SHARE: u32 = 20;

/// The output token limit: `None` if the budget does not restrict it, or an error text if the request must not be
/// sent. `cost` returns the maximum cost of a request with a given usage.
pub(crate) fn answer_tokens(
    budget: &Budget,
    spent: &Spent,
    prompt_tokens: u32,
    cost: impl Fn(&Usage) -> Option<Money>,
) -> Result<Option<u32>, String> {
    let prompt = u64::from(prompt_tokens);
    let mut most = None;
    if let Some(limit) = budget.tokens {
        let left = limit.saturating_sub(spent.tokens());
        let room = left.checked_sub(prompt).filter(|room| *room >= u64::from(MIN_ANSWER_TOKENS));
        let Some(room) = room else {
            return Err(format!(
                "{left} of {limit} tokens are left, too few for the next question to the model, which has {prompt_tokens}"
            ));
        };
        most = Some(u32::try_from(room).unwrap_or(u32::MAX));
    }
    if let Some(limit) = budget.money_usd {
        let asked = |output: u32| {
            cost(&Usage { input: prompt, output: u64::from(output), ..Usage::default() }).unwrap_or_default()
        };
        let left = (limit - spent.money_usd()).max(0.0);
        let least = asked(MIN_ANSWER_TOKENS);
        if least.dollars() > left {
            return Err(format!(
                "${left:.4} of ${limit:.4} are left, too little for the next question to the model, which may cost {least}"
            ));
        }
        // Output prices can depend on the number of input tokens, so the price is queried instead of computed.
        let million = asked(1_000_000).dollars() - asked(0).dollars();
        if million > 0.0 {
            let room = (left - asked(0).dollars()) / million * 1e6;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a cast that saturates"
            )]
            let room = (room as u32).max(MIN_ANSWER_TOKENS);
            most = Some(most.map_or(room, |most| most.min(room)));
        }
    }
    Ok(most)
}

/// The output token limit of a request: the least of what the model writes, what its window leaves beside the prompt,
/// and what the budget leaves. `prompt_tokens` are counted as the provider counts.
pub(crate) fn output_limit(limits: &ModelLimits, prompt_tokens: u32, most: Option<u32>) -> u32 {
    let margin = prompt_tokens / PROMPT_MARGIN_SHARE;
    let room = limits.context_tokens.saturating_sub(prompt_tokens).saturating_sub(margin);
    limits.output_tokens.min(room.max(MIN_ANSWER_TOKENS)).min(most.unwrap_or(u32::MAX)).max(1)
}

/// Whether the remaining tokens and money cover `times` such requests.
pub(crate) fn covers_requests(
    budget: &Budget,
    spent: &Spent,
    usage: &Usage,
    cost: Option<Money>,
    times: u32,
) -> bool {
    let tokens_left = budget.tokens.map_or(u64::MAX, |limit| limit.saturating_sub(spent.tokens()));
    let has_money = budget.money_usd.is_none_or(|limit| {
        cost.is_some_and(|cost| cost.dollars() * f64::from(times) <= limit - spent.money_usd())
    });
    tokens_left / u64::from(times.max(1)) >= usage.total() && has_money
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One dollar per thousand input tokens, two per thousand output tokens.
    fn cost(usage: &Usage) -> Option<Money> {
        Some(Money::from_nanodollars(usage.input * 1_000_000 + usage.output * 2_000_000))
    }

    fn spent(tokens: u64, dollars: u64) -> Spent {
        Spent { input_tokens: tokens, cost_nanodollars: dollars * 1_000_000_000, ..Spent::default() }
    }

    #[test]
    fn remaining_budget_covers_the_request_and_limits_the_answer() {
        let none = Budget::default();
        assert_eq!(answer_tokens(&none, &spent(9, 9), 3000, cost), Ok(None));
        let tokens = Budget { tokens: Some(10_000), ..none };
        assert_eq!(answer_tokens(&tokens, &spent(0, 0), 3000, cost), Ok(Some(7000)));
        assert_eq!(answer_tokens(&tokens, &spent(6800, 0), 3000, cost), Ok(Some(200)));
        let refused = answer_tokens(&tokens, &spent(6801, 0), 3000, cost).unwrap_err();
        assert!(refused.starts_with("3199 of 10000 tokens are left, too few"), "{refused}");
        let money = Budget { money_usd: Some(10.0), ..none };
        assert_eq!(answer_tokens(&money, &spent(0, 1), 3000, cost), Ok(Some(3000)));
        let refused = answer_tokens(&money, &spent(0, 7), 3000, cost).unwrap_err();
        assert!(
            refused.starts_with("$3.0000 of $10.0000 are left") && refused.ends_with("$3.4000"),
            "{refused}"
        );
        let both = Budget { tokens: Some(10_000), ..money };
        assert_eq!(answer_tokens(&both, &spent(5000, 1), 3000, cost), Ok(Some(2000)));
        assert_eq!(
            answer_tokens(&money, &spent(0, 9), 3000, |_| Some(Money::default())),
            Ok(None),
            "it is free"
        );
    }

    #[test]
    fn an_answer_is_limited_by_the_model_its_window_and_the_budget() {
        let limits = ModelLimits {
            context_tokens: 16_000,
            output_tokens: 4000,
            vision: false,
            native_tools: true,
            reasoning: false,
        };
        assert_eq!(output_limit(&limits, 1000, None), 4000);
        assert_eq!(output_limit(&limits, 12_000, None), 3400, "a margin for the prompt");
        assert_eq!(output_limit(&limits, 20_000, None), MIN_ANSWER_TOKENS, "the prompt is too long anyway");
        assert_eq!(output_limit(&limits, 1000, Some(700)), 700);
        assert_eq!(output_limit(&limits, 12_000, Some(9000)), 3400);
    }

    #[test]
    fn background_requests_leave_most_of_the_budget() {
        let usage = Usage { input: 1000, output: 500, ..Usage::default() };
        let is_afforded = |budget: Budget| covers_requests(&budget, &spent(1000, 1), &usage, cost(&usage), 4);
        assert!(is_afforded(Budget::default()));
        assert!(is_afforded(Budget { tokens: Some(7000), money_usd: Some(9.0), ..Budget::default() }));
        assert!(!is_afforded(Budget { tokens: Some(6999), ..Budget::default() }));
        assert!(!is_afforded(Budget { money_usd: Some(8.9), ..Budget::default() }));
        let budget = Budget { money_usd: Some(8.9), ..Budget::default() };
        assert!(!covers_requests(&budget, &spent(0, 0), &usage, None, 4), "a price that nobody knows");
    }
}
