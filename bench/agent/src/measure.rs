//! Runs one task and sums up its prompts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use agent::{
    Agent, AgentParts, AgentSettings, Capability, ExternalTools, Recall, RunOutcome, SummaryMode, Toolbox,
    tools,
};
use anyhow::{Context as _, Result, bail};
use model::Model;
use serde::Serialize;

use crate::host::MemoryHost;
use crate::scripted::{Prompt, ScriptedModel};
use crate::tasks::Task;

/// What a cached token costs, as a share of the price of an uncached one.
const CACHED_PRICE: f64 = 0.1;

#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) task: &'static str,
    /// The window of the model, in tokens.
    pub(crate) window: u32,
    pub(crate) is_finished: bool,
    pub(crate) turns: usize,
    pub(crate) first_prompt_tokens: u64,
    pub(crate) largest_prompt_tokens: u64,
    /// The tokens of all prompts.
    pub(crate) prompt_tokens: u64,
    /// The share of them that stands at the beginning of the prompt before, too.
    pub(crate) cacheable: f64,
    /// Uncached tokens and a tenth of the cached ones.
    pub(crate) relative_cost: f64,
}

pub(crate) async fn run_task(task: Task, window: u32) -> Result<Figures> {
    let host = MemoryHost::new(task.text, task.outputs);
    let model = Arc::new(ScriptedModel::new(window, task.turns));
    let abilities = BTreeSet::from([Capability::Python, Capability::Curl, Capability::Ripgrep]);
    let parts = AgentParts {
        settings: AgentSettings::default(),
        model: Arc::clone(&model) as Arc<dyn Model>,
        toolbox: Toolbox::new(tools::standard(), &abilities),
        extra: ExternalTools::default(),
        egress: "no connection to the outside is possible.".into(),
        cache_key: "bench".into(),
        recall: Recall::none(),
        summaries: SummaryMode::Extract,
    };
    let mut agent = Agent::new(parts, &host.log()).with_context(|| format!("window {window}"))?;
    let ending = match agent.run(&host).await {
        Ok(ending) => ending,
        Err(stopped) => bail!("{}: {stopped:?}", task.name),
    };
    Ok(figures_of(task.name, window, matches!(ending, RunOutcome::Finished(_)), &model.prompts()))
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens are small")]
fn figures_of(task: &'static str, window: u32, is_finished: bool, prompts: &[Prompt]) -> Figures {
    let prompt_tokens: u64 = prompts.iter().map(|prompt| prompt.tokens).sum();
    let cached: u64 = prompts.iter().map(|prompt| prompt.cached).sum();
    let relative_cost = (cached as f64).mul_add(CACHED_PRICE, (prompt_tokens - cached) as f64);
    Figures {
        task,
        window,
        is_finished,
        turns: prompts.len(),
        first_prompt_tokens: prompts.first().map_or(0, |prompt| prompt.tokens),
        largest_prompt_tokens: prompts.iter().map(|prompt| prompt.tokens).max().unwrap_or_default(),
        prompt_tokens,
        cacheable: cached as f64 / prompt_tokens.max(1) as f64,
        relative_cost,
    }
}

pub(crate) fn table(figures: &[Figures]) -> String {
    let mut text =
        "| window | task | turns | first / largest prompt | prompt tokens | cacheable | relative cost |\n\
                    |---|---|---|---|---|---|---|\n"
            .to_owned();
    for figures in figures {
        let Figures { task, window, turns, first_prompt_tokens, largest_prompt_tokens, .. } = figures;
        let mark = if figures.is_finished { "" } else { " (not finished)" };
        let _ = writeln!(
            text,
            "| {window} | {task}{mark} | {turns} | {first_prompt_tokens} / {largest_prompt_tokens} | {} | {:.3} | {:.0} |",
            figures.prompt_tokens, figures.cacheable, figures.relative_cost
        );
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::tasks;

    #[tokio::test]
    async fn every_task_is_finished_in_small_and_large_windows() {
        for window in [8_192, 131_072] {
            for task in tasks::all() {
                let turns = task.turns.len();
                let figures = run_task(task, window).await.unwrap();
                assert!(figures.is_finished && figures.turns == turns, "{figures:?}");
                assert!(figures.largest_prompt_tokens <= u64::from(window), "{figures:?}");
            }
        }
    }

    #[tokio::test]
    async fn prompts_that_only_grow_are_nearly_all_cacheable() {
        let task = tasks::all().into_iter().find(|task| task.name == "fix").unwrap();
        let figures = run_task(task, 131_072).await.unwrap();
        assert!(figures.cacheable > 0.85, "{figures:?}");
        assert!(table(&[figures]).contains("| 131072 | fix | 26 | "));
    }
}
