//! The window that views are built for: its size, the caller's part, and limits learned from rejected prompts.

use super::Engine;
use crate::entry::{Factor, Window};
use crate::policy::{Fixed, MIN_TIGHTENED_BUDGET, Policy};

/// The maximum size of a window and of the caller's part of it.
const MAX_BUDGET_TOKENS: u32 = 1 << 30;
const MAX_FIXED_TOKENS: u32 = 1 << 26;

impl Engine {
    /// Whether the caller's part leaves too little of the budget. Until the log has a window with a smaller part, a
    /// view may be larger than the provider accepts.
    pub fn caller_part_is_too_large(&self) -> bool {
        self.settings.our_budget() < self.least_budget()
    }

    /// Switches to another window. Returns whether that changed the head of the view.
    pub(super) fn switch_window(&mut self, window: Window) -> bool {
        let fixed = Fixed {
            system_tokens: window.system_tokens.min(MAX_FIXED_TOKENS),
            tools_tokens: window.tools_tokens.min(MAX_FIXED_TOKENS),
        };
        let budget_tokens = window.budget_tokens.min(MAX_BUDGET_TOKENS);
        let is_known = match &self.window {
            // The same window, logged again after a restart: limits learned from rejected prompts still apply.
            Some(before) => *before == window,
            None => self.settings.fixed == fixed && self.settings.budget_tokens == budget_tokens,
        };
        let before = self.window.replace(window);
        if is_known {
            return false;
        }
        let current = self.window.as_ref();
        let is_same_model =
            before.as_ref().map(|window| &window.model) == current.map(|window| &window.model);
        let is_same_size = before.as_ref().is_some_and(|window| window.budget_tokens == budget_tokens);
        if before.is_some() && !is_same_model {
            // Models differ in how they count tokens.
            self.settings.factor = current.and_then(|window| window.factor).unwrap_or(Factor::ONE);
        }
        if !(is_same_model && is_same_size) {
            // If only the tools changed, limits learned from rejected prompts still apply.
            self.settings.budget_tokens = budget_tokens;
        }
        self.settings.fixed = fixed;
        self.head.fixed = fixed;
        self.update_policy();
        self.head.refresh(&self.policy);
        true
    }

    pub(super) fn tighten(&mut self, limit_tokens: Option<u32>) {
        let now = self.settings.budget_tokens;
        let tighter = now / 5 * 4;
        // A limit below our budget is trusted, with a margin for counting errors. A limit above it shows that our
        // count is wrong.
        let wanted = limit_tokens.filter(|limit| *limit < now).map_or(tighter, |limit| limit - limit / 50);
        let least = self.settings.factor.real(MIN_TIGHTENED_BUDGET);
        self.settings.budget_tokens = wanted.min(now).max(least.min(now));
        self.update_policy();
    }

    /// With a smaller budget, the caller's part would leave no room for the task. The caller must shrink its part
    /// before the next request ([`Engine::caller_part_is_too_large`]). Until then nothing is folded, because no view is sent.
    fn least_budget(&self) -> u32 {
        MIN_TIGHTENED_BUDGET.max(self.settings.fixed.tokens().saturating_mul(3))
    }

    pub(super) fn update_policy(&mut self) {
        let least = self.least_budget();
        self.policy = Policy::new(self.settings.our_budget().max(least), self.settings.fixed);
    }
}
