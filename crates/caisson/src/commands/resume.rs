//! `caisson resume`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value, json};

use super::job_requests::{JobRequest, JobsArguments, send_to_all};
use crate::arguments::parse_number;

/// `caisson resume`
#[derive(Debug, Args)]
#[command(after_help = "\
To resume a job that has used up its budget, give it a larger one. Each value is the new total.

Examples:
  caisson resume 1c2d4e6f
  caisson resume 1c2d4e6f --turns 400 --money 5")]
pub(crate) struct ResumeArguments {
    #[command(flatten)]
    jobs: JobsArguments,
    #[command(flatten)]
    budget: BudgetArguments,
}

/// What a job may spend.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct BudgetArguments {
    /// Total cost of model calls in US dollars.
    #[arg(long, value_name = "USD", value_parser = parse_number)]
    money: Option<f64>,
    /// Total input and output tokens.
    #[arg(long, value_name = "NUMBER")]
    tokens: Option<u64>,
    /// Total model turns.
    #[arg(long, value_name = "NUMBER")]
    turns: Option<u64>,
    /// Total tool calls.
    #[arg(long, value_name = "NUMBER")]
    tool_calls: Option<u64>,
    /// Total working time in seconds.
    #[arg(long, value_name = "SECONDS")]
    work_time: Option<u64>,
}

impl BudgetArguments {
    /// The request field; `None` if no limit was given.
    pub(crate) fn to_json(self) -> Option<Value> {
        let mut budget = Map::new();
        budget.extend(self.money.map(|money| ("money_usd".to_owned(), json!(money))));
        let counts = [
            ("tokens", self.tokens),
            ("turns", self.turns),
            ("tool_calls", self.tool_calls),
            ("wall_s", self.work_time),
        ];
        budget.extend(counts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))));
        (!budget.is_empty()).then_some(Value::Object(budget))
    }
}

pub(crate) async fn run(arguments: ResumeArguments) -> Result<ExitCode> {
    let mut body = Map::new();
    body.extend(arguments.budget.to_json().map(|budget| ("budget".to_owned(), budget)));
    let body = Value::Object(body);
    send_to_all(&arguments.jobs, &JobRequest { route: "resume", body, done: "is resuming" }).await
}
