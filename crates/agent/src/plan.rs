//! A job's task list. The model edits it, people see it, and it is pinned in the prompt.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const MAX_PLAN_ITEMS: usize = 100;
const MAX_ITEM_CHARACTERS: usize = 500;

/// What is to be done, point by point.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The points, in order.
    pub items: Vec<PlanItem>,
}

/// One point of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanItem {
    /// What is to be done.
    pub text: String,
    /// Its state; default `pending`.
    #[serde(default)]
    pub status: PlanStatus,
}

/// The state of a point of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanStatus {
    /// Not begun.
    #[default]
    Pending,
    /// Being done.
    #[serde(alias = "doing", alias = "active")]
    InProgress,
    /// Done.
    #[serde(alias = "completed", alias = "complete")]
    Done,
    /// Not needed any more.
    #[serde(alias = "dropped", alias = "cancelled")]
    Skipped,
}

impl Plan {
    /// Validates a plan written by a model or a person.
    ///
    /// # Errors
    /// What is invalid and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        if self.items.is_empty() {
            return Err("the plan has no items; give at least one".into());
        }
        if self.items.len() > MAX_PLAN_ITEMS {
            return Err(format!(
                "the plan has {} items, at most {MAX_PLAN_ITEMS} are allowed",
                self.items.len()
            ));
        }
        for (index, item) in self.items.iter().enumerate() {
            if item.text.trim().is_empty() {
                return Err(format!("items[{index}].text is empty"));
            }
            if item.text.chars().count() > MAX_ITEM_CHARACTERS {
                return Err(format!("items[{index}].text has more than {MAX_ITEM_CHARACTERS} characters"));
            }
        }
        Ok(())
    }

    /// The number of items that are done or skipped.
    #[must_use]
    pub fn done(&self) -> usize {
        self.items.len() - self.open_items().count()
    }

    /// The items that are neither done nor skipped, with their numbers from 1.
    pub fn open_items(&self) -> impl Iterator<Item = (usize, &PlanItem)> {
        let is_open = |item: &PlanItem| !matches!(item.status, PlanStatus::Done | PlanStatus::Skipped);
        (1..).zip(&self.items).filter(move |(_, item)| is_open(item))
    }

    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (index, item) in self.items.iter().enumerate() {
            let mark = match item.status {
                PlanStatus::Pending => "[ ]",
                PlanStatus::InProgress => "[>]",
                PlanStatus::Done => "[x]",
                PlanStatus::Skipped => "[-]",
            };
            let _ = writeln!(text, "{}. {mark} {}", index + 1, item.text);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_shown_with_a_mark_for_each_point() {
        let plan: Plan = serde_json::from_str(
            r#"{"items":[{"text":"look","status":"done"},{"text":"build","status":"doing"},{"text":"test"}]}"#,
        )
        .unwrap();
        assert_eq!(plan.to_text(), "1. [x] look\n2. [>] build\n3. [ ] test\n");
        assert_eq!(plan.done(), 1);
        let open: Vec<usize> = plan.open_items().map(|(number, _)| number).collect();
        assert_eq!(open, [2, 3]);
    }

    #[test]
    fn an_empty_plan_and_an_empty_point_are_refused_by_name() {
        assert!(Plan::default().check().unwrap_err().contains("no items"));
        let item = PlanItem { text: " ".into(), status: PlanStatus::Pending };
        assert!(Plan { items: vec![item] }.check().unwrap_err().contains("items[0].text"));
    }
}
