//! Money and model prices.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ModelError;
use crate::usage::Usage;

/// An exact amount of money, in billionths of a US dollar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Money {
    nanodollars: u64,
}

impl Money {
    pub const fn from_nanodollars(nanodollars: u64) -> Self {
        Self { nanodollars }
    }

    /// Converts from dollars, rounding up; `None` if the value is not a valid amount.
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just here")]
        (0.0..=1e9).contains(&dollars).then(|| Self { nanodollars: (dollars * 1e9).ceil() as u64 })
    }

    /// In dollars, for display.
    #[expect(clippy::cast_precision_loss, reason = "for showing")]
    pub fn dollars(self) -> f64 {
        self.nanodollars as f64 / 1e9
    }

    pub const fn nanodollars(self) -> u64 {
        self.nanodollars
    }
}

impl std::ops::Add for Money {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { nanodollars: self.nanodollars.saturating_add(other.nanodollars) }
    }
}

impl fmt::Display for Money {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ten_thousandths = self.nanodollars.div_ceil(100_000);
        write!(formatter, "${}.{:04}", ten_thousandths / 10_000, ten_thousandths % 10_000)
    }
}

/// What a model costs, in US dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Input that is not in the cache.
    pub input: f64,
    /// Input that is read from the cache; default `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
    /// Input that is written into the cache; default `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
    /// Output.
    pub output: f64,
    /// Another price for requests that read more than so many tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<LongPrice>,
}

/// What a long request costs, as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LongPrice {
    /// Requests that read more than this.
    pub tokens: u64,
    /// Input that is not in the cache.
    pub input: f64,
    /// Input that is read from the cache; default `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
    /// Output.
    pub output: f64,
}

impl Price {
    /// The cost of this usage, rounded up.
    pub fn of(&self, usage: &Usage) -> Money {
        let long = self.above.filter(|long| usage.prompt() > long.tokens);
        let (input, cached, output) = match long {
            Some(long) => (long.input, long.cached_input, long.output),
            None => (self.input, self.cached_input, self.output),
        };
        // For long requests, the price of cache writes scales with the input price.
        let write = self
            .cache_write
            .map_or(input, |write| if self.input > 0.0 { write * input / self.input } else { write });
        let amounts = [
            (usage.input, input),
            (usage.cached_input, cached.unwrap_or(input)),
            (usage.cache_write, write),
            (usage.output, output),
        ];
        #[expect(clippy::cast_precision_loss, reason = "no bill has that many tokens")]
        let microdollars: f64 = amounts.iter().map(|(tokens, price)| *tokens as f64 * price).sum();
        // Prevents floating-point noise from rounding up an amount that is exact.
        Money::from_dollars((microdollars - 1e-6).max(0.0) / 1e6).unwrap_or(Money::from_nanodollars(u64::MAX))
    }

    /// Rejects an invalid price, naming the setting.
    pub fn check(&self, key: &str) -> Result<(), ModelError> {
        let long = self
            .above
            .map(|long| [Some(long.input), long.cached_input, Some(long.output)])
            .unwrap_or_default();
        let all = [Some(self.input), self.cached_input, self.cache_write, Some(self.output)];
        match all.into_iter().chain(long).flatten().find(|price| !(0.0..=100_000.0).contains(price)) {
            None => Ok(()),
            Some(price) => Err(ModelError::Settings {
                key: key.to_owned(),
                detail: format!("{price} is not between 0 and 100000 dollars for a million tokens"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICE: Price = Price {
        input: 3.0,
        cached_input: Some(0.3),
        cache_write: Some(3.75),
        output: 15.0,
        above: Some(LongPrice { tokens: 200_000, input: 6.0, cached_input: Some(0.6), output: 22.5 }),
    };

    #[test]
    fn each_kind_of_token_is_priced() {
        let usage =
            Usage { input: 1000, cached_input: 10_000, cache_write: 2000, output: 500, reasoning: 400 };
        assert_eq!(PRICE.of(&usage), Money::from_nanodollars(3_000_000 + 3_000_000 + 7_500_000 + 7_500_000));
        assert_eq!(PRICE.of(&usage).to_string(), "$0.0210");
        assert_eq!(PRICE.of(&Usage::default()), Money::default());
    }

    #[test]
    fn a_long_request_costs_more_as_a_whole() {
        let usage = Usage { input: 200_001, output: 1000, ..Usage::default() };
        assert_eq!(PRICE.of(&usage), Money::from_nanodollars(200_001 * 6000 + 1000 * 22_500));
    }

    #[test]
    fn invalid_prices_are_rejected_by_name() {
        let wrong = Price { output: -1.0, ..PRICE };
        assert!(
            wrong
                .check("model.prices")
                .unwrap_err()
                .to_string()
                .starts_with("model.prices: -1 is not between")
        );
        assert!(Price { input: f64::NAN, ..PRICE }.check("model.prices").is_err());
    }
}
