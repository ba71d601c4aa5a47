//! Validates the steps of a submitted job.

use crate::invalid::{InvalidField, invalid};
use crate::spec::check_seconds;
use crate::step::Step;

/// Validates one step. Errors name the field within the step.
pub fn check_step(step: &Step) -> Result<(), InvalidField> {
    let options = &step.options;
    if let Some(seconds) = options.timeout_s {
        check_seconds("timeout_s", seconds)?;
    }
    if options.retry > 10 {
        return Err(invalid("retry", format!("{} is more than 10", options.retry)));
    }
    if options.name.as_ref().is_some_and(|name| name.is_empty() || name.chars().count() > 200) {
        return Err(invalid("name", "must have 1 to 200 characters"));
    }
    step.tool.call().map(drop)
}
