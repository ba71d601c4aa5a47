//! Measures what an agent sends to its model: the real agent loop, prompts and tools, with scripted answers and a
//! sandbox in memory. The same program gives the same figures on any machine.

mod host;
mod measure;
mod scripted;
mod tasks;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::measure::{Figures, run_task, table};

/// Tokens per task, and the share of them that a provider's prompt cache can serve.
#[derive(Debug, Parser)]
#[command(name = "bench-agent")]
struct Arguments {
    /// Windows of the model, in tokens.
    #[arg(long, value_delimiter = ',', default_values_t = [16_384, 32_768, 131_072])]
    windows: Vec<u32>,
    /// Only tasks whose name contains this.
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// For programs.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    let figures = runtime.block_on(measure_all(&arguments))?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        println!("{}", table(&figures));
    }
    let has_failed = figures.iter().any(|figures| !figures.is_finished);
    Ok(if has_failed { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

async fn measure_all(arguments: &Arguments) -> Result<Vec<Figures>> {
    let mut figures = Vec::new();
    for window in &arguments.windows {
        for task in tasks::all().into_iter().filter(|task| task.name.contains(&arguments.only)) {
            figures.push(run_task(task, *window).await?);
        }
    }
    Ok(figures)
}
