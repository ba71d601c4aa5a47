//! Measures the context engine against its targets and against other strategies, on a generated history or on
//! recorded trajectories.
//!
//! Each measurement runs in a separate process (hidden subcommands), so that it has its own memory and caches.

mod baselines;
mod generate;
mod measure;
mod report;
mod trajectories;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use context::{Entry, EventId};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::baselines::Cost;
use crate::generate::{Generated, Random, Statistics, generate};
use crate::measure::{Answers, Pass};
use crate::report::{History, Report};

/// Figures of the context engine, beside its targets and beside what others do.
#[derive(Debug, Parser)]
#[command(name = "bench-context")]
struct Arguments {
    /// Sizes of the generated history, in tokens.
    #[arg(long, value_delimiter = ',', default_values_t = [100_000, 1_000_000, 10_000_000])]
    tokens: Vec<u64>,
    /// Sizes of the history that is held out: of other statistics, which nothing was tuned by. 0 for none.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000])]
    held_out: Vec<u64>,
    /// A folder of recorded trajectories (JSON lines with `role`, `content`, optional `tool_calls`) instead.
    #[arg(long)]
    trajectories: Option<PathBuf>,
    /// Questions with evidence (JSON lines with `query` and `evidence`, a list of messages such as 12 or "e12", counted from
    /// 1 over all messages of the trajectories, system prompts too): prints recall@1/5/10/20/50 alone.
    #[arg(long, requires = "trajectories")]
    questions: Option<PathBuf>,
    /// For programs.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    work: Option<Work>,
}

/// One measurement, in a process of its own.
#[derive(Debug, Subcommand)]
#[command(hide = true)]
enum Work {
    #[command(hide = true)]
    Pass { log: PathBuf, budget: u32, index: Option<PathBuf> },
    #[command(hide = true)]
    Cold { log: PathBuf, budget: u32 },
    #[command(hide = true)]
    Ask { index: PathBuf, questions: PathBuf },
    #[command(hide = true)]
    Compare { log: PathBuf },
}

#[derive(Debug, Deserialize)]
struct Question {
    query: String,
    evidence: Vec<Evidence>,
}

/// The number of a message, as a number or in the event notation.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Evidence {
    Number(u64),
    Name(String),
}

impl Evidence {
    fn number(&self) -> Result<u64> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Name(name) => Ok(name.parse::<EventId>()?.0),
        }
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    match &arguments.work {
        Some(Work::Pass { log, budget, index }) => print(&measure::pass(log, *budget, index.as_deref())?),
        Some(Work::Cold { log, budget }) => print(&measure::cold(log, *budget)?),
        Some(Work::Ask { index, questions }) => {
            let questions: Vec<(String, Vec<u64>)> = serde_json::from_reader(File::open(questions)?)?;
            print(&measure::ask(index, &questions)?)
        }
        Some(Work::Compare { log }) => print(&measure::compare(log)?),
        None => run(&arguments),
    }
}

fn print(value: &impl serde::Serialize) -> Result<ExitCode> {
    println!("{}", serde_json::to_string(value)?);
    Ok(ExitCode::SUCCESS)
}

/// Runs one measurement in a child process and parses its output.
fn work<T: DeserializeOwned>(arguments: &[&std::ffi::OsStr]) -> Result<T> {
    let program = std::env::current_exe().context("find this program")?;
    let output = Command::new(program).args(arguments).stderr(std::process::Stdio::inherit()).output()?;
    anyhow::ensure!(output.status.success(), "a measurement failed: {arguments:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let folder = tempfile::tempdir()?;
    if let Some(source) = &arguments.trajectories {
        let log = folder.path().join("log");
        let made = convert(source, &log)?;
        if let Some(questions) = &arguments.questions {
            return answer(&log, folder.path(), questions);
        }
        let questions = measure::rare_words(&log, 1000)?;
        let history = figures(&log, folder.path(), &made, &questions, &source.display().to_string())?;
        return finish(&Report { histories: vec![history] }, arguments.json);
    }
    let mut histories = Vec::new();
    let usual = arguments.tokens.iter().map(|tokens| (*tokens, Statistics::USUAL, "generated"));
    let held_out = arguments.held_out.iter().filter(|tokens| **tokens > 0);
    let held_out = held_out.map(|tokens| (*tokens, Statistics::HELD_OUT, "held out"));
    for (tokens, statistics, what) in usual.chain(held_out) {
        eprintln!("{what}, {tokens} tokens: generating");
        let place = folder.path().join(format!("{tokens}-{}", statistics.seed));
        std::fs::create_dir(&place)?;
        let log = place.join("log");
        let made = generate(&mut BufWriter::new(File::create(&log)?), tokens, statistics)?;
        let questions: Vec<(String, Vec<u64>)> =
            made.questions.iter().map(|(query, id)| (query.clone(), vec![*id])).collect();
        let name = format!("{what}, {} tokens", report::thousands(tokens));
        histories.push(figures(&log, &place, &made, &questions, &name)?);
        std::fs::remove_dir_all(&place)?;
    }
    finish(&Report { histories }, arguments.json)
}

fn finish(report: &Report, json: bool) -> Result<ExitCode> {
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.render());
    }
    Ok(if report.is_met() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// Runs all measurements on one log.
fn figures(
    log: &Path,
    place: &Path,
    made: &Generated,
    questions: &[(String, Vec<u64>)],
    name: &str,
) -> Result<History> {
    let index = place.join("index");
    eprintln!("{name}: passes");
    let mut passes: Vec<Pass> =
        vec![work(&["pass".as_ref(), log.as_ref(), "100000".as_ref(), index.as_ref()])?];
    for budget in ["32000", "4096", "1048576"] {
        passes.push(work(&["pass".as_ref(), log.as_ref(), budget.as_ref()])?);
    }
    eprintln!("{name}: cold starts");
    let mut cold: Vec<f64> = Vec::new();
    for _ in 0..5 {
        cold.push(work(&["cold".as_ref(), log.as_ref(), "100000".as_ref()])?);
    }
    cold.sort_by(f64::total_cmp);
    eprintln!("{name}: questions");
    let answers: Answers = ask(&index, place, questions)?;
    // Questions as people ask them are longer and use common words. They are slower, so they are only used for
    // timing.
    let prose: Vec<(String, Vec<u64>)> = prose(questions);
    let prose: Answers = ask(&index, place, &prose)?;
    eprintln!("{name}: what others do");
    let others: Vec<(String, Cost)> = work(&["compare".as_ref(), log.as_ref()])?;
    let cold_ms = cold[cold.len() / 2];
    let observations = made.observation_bytes as f64 / made.text_bytes.max(1) as f64;
    Ok(History { name: name.to_owned(), observations, passes, cold_ms, answers, prose, others })
}

fn ask(index: &Path, place: &Path, questions: &[(String, Vec<u64>)]) -> Result<Answers> {
    let file = place.join("questions");
    std::fs::write(&file, serde_json::to_vec(questions)?)?;
    work(&["ask".as_ref(), index.as_ref(), file.as_ref()])
}

/// Sentences of common words, every second one with the rare word.
fn prose(questions: &[(String, Vec<u64>)]) -> Vec<(String, Vec<u64>)> {
    let mut random = Random::new(11);
    let common =
        ["test failed", "error in the parser", "src config", "what did cargo test say about", "grep stream"];
    let sentence = |(at, (word, evidence)): (usize, &(String, Vec<u64>))| {
        let (a, b) = (common[random.below(common.len())], common[random.below(common.len())]);
        let word = if at % 2 == 0 { word.as_str() } else { "" };
        (format!("{a} {b} {word}"), evidence.clone())
    };
    questions.iter().enumerate().map(sentence).take(500).collect()
}

/// Converts trajectories into a log.
fn convert(source: &Path, log: &Path) -> Result<Generated> {
    let mut out = BufWriter::new(File::create(log)?);
    let mut made = Generated::default();
    for (number, body) in trajectories::read_folder(source)? {
        made.events += 1;
        let entry = Entry::new(EventId(number), 1_794_700_800_000 + number as i64 * 7_000, body);
        let bytes = context::recall::text_of(&entry).len() as u64;
        made.tokens += u64::from(entry.tokens);
        made.text_bytes += bytes;
        if matches!(entry.body, context::EntryBody::Result(_)) {
            made.observation_bytes += bytes;
        }
        writeln!(out, "{}", entry.encode()?)?;
    }
    out.flush()?;
    Ok(made)
}

/// The second mode: answers questions whose evidence is known.
fn answer(log: &Path, place: &Path, questions: &Path) -> Result<ExitCode> {
    let index = place.join("index");
    let _: Pass = work(&["pass".as_ref(), log.as_ref(), "100000".as_ref(), index.as_ref()])?;
    let text = std::fs::read_to_string(questions).with_context(|| format!("read {}", questions.display()))?;
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place =
            || format!("{} line {}: `query` and `evidence` are needed", questions.display(), number + 1);
        let question: Question = serde_json::from_str(line).with_context(place)?;
        let evidence = question.evidence.iter().map(Evidence::number).collect::<Result<_>>();
        all.push((question.query, evidence.with_context(place)?));
    }
    let answers = ask(&index, place, &all)?;
    print!("{}", report::answers(&answers));
    Ok(ExitCode::SUCCESS)
}
