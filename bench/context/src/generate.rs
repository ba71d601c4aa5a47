//! Generates a history that resembles real agents: three quarters of the bytes are observations with heavy-tailed
//! sizes, the same files are viewed and the same tests run repeatedly, and occasionally there is an identifier that
//! never occurs again.

use std::io::Write;

use anyhow::Result;
use context::{Call, CallResult, Entry, EntryBody, EventId, output_cap};
use serde_json::json;

/// A small random number generator: the same seed gives the same history on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }

    /// A number from 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A log-normally distributed size: many small ones, few very large ones.
    fn heavy(&mut self, median: f64, spread: f64) -> f64 {
        let normal: f64 = (0..12).map(|_| self.unit()).sum::<f64>() - 6.0;
        median * (spread * normal).exp()
    }

    /// A number below `end`, small ones much more often than large ones.
    fn skewed(&mut self, end: usize) -> usize {
        let unit = self.unit();
        ((unit * unit * unit) * end as f64) as usize
    }
}

const STEMS: [&str; 48] = [
    "parse", "header", "token", "stream", "buffer", "index", "cache", "entry", "record", "query", "filter",
    "merge", "split", "encode", "decode", "socket", "client", "server", "worker", "queue", "lease", "event",
    "store", "writer", "reader", "policy", "budget", "window", "segment", "cursor", "offset", "length",
    "digest", "layer", "mount", "signal", "handle", "result", "option", "config", "path", "file", "line",
    "column", "range", "level", "node", "tree",
];

/// The agent's workspace.
struct Workspace {
    names: Vec<String>,
    files: Vec<(String, Vec<String>)>,
}

impl Workspace {
    fn new(random: &mut Random) -> Self {
        let mut names = Vec::new();
        for _ in 0..6000 {
            let parts = 1 + random.below(3);
            let words: Vec<&str> = (0..parts).map(|_| STEMS[random.skewed(STEMS.len())]).collect();
            let number = if random.below(4) == 0 { random.below(90).to_string() } else { String::new() };
            names.push(match random.below(3) {
                0 => format!("{}{number}", words.join("_")),
                1 => words.iter().fold(number, |all, word| all + &word[..1].to_uppercase() + &word[1..]),
                _ => format!("{}{number}", words.concat()),
            });
        }
        let files = (0..400)
            .map(|_| {
                let path = format!("src/{}/{}.rs", STEMS[random.below(48)], names[random.below(names.len())]);
                let lines = (0..40 + random.below(600)).map(|_| code(random, &names)).collect();
                (path, lines)
            })
            .collect();
        Self { names, files }
    }
}

fn code(random: &mut Random, names: &[String]) -> String {
    let mut name = || names[random.skewed(names.len())].as_str();
    let (a, b, c, d) = (name(), name(), name(), name());
    match random.below(7) {
        0 => format!("    let {a} = self.{b}.{c}({d})?;"),
        1 => format!("    if {a} > {b}.{c} {{"),
        2 => format!("pub fn {a}({b}: &{c}) -> Result<{d}> {{"),
        3 => "    }".to_owned(),
        4 => format!("        // the {a} of {b} must not outlive its {c}"),
        5 => format!("        return Err({a}::{b} {{ {c}: {} }});", random.below(1000)),
        _ => String::new(),
    }
}

#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Generated {
    pub(crate) tokens: u64,
    pub(crate) text_bytes: u64,
    pub(crate) observation_bytes: u64,
    pub(crate) events: u64,
    /// Identifiers that occur in only one event, with its number.
    pub(crate) questions: Vec<(String, u64)>,
}

/// Parameters of a generated history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Statistics {
    pub(crate) seed: u64,
    /// Median and spread of the number of lines of an observation.
    lines: f64,
    spread: f64,
    /// One in this many answers has parallel calls.
    parallel: usize,
    /// Median number of sentences of a thought.
    sentences: f64,
}

impl Statistics {
    /// Modelled on real runs. The engine's constants were tuned with this history.
    pub(crate) const USUAL: Self = Self { seed: 7, lines: 24.0, spread: 1.25, parallel: 12, sentences: 3.0 };
    /// Held out from all tuning: another seed, shorter observations with a heavier tail, more parallel calls, longer
    /// thoughts.
    pub(crate) const HELD_OUT: Self =
        Self { seed: 104_729, lines: 16.0, spread: 1.55, parallel: 6, sentences: 4.0 };
}

/// Writes a history of about `tokens` tokens as JSON lines.
pub(crate) fn generate(out: &mut impl Write, tokens: u64, statistics: Statistics) -> Result<Generated> {
    let mut random = Random::new(statistics.seed);
    let workspace = Workspace::new(&mut random);
    let mut writer = Writer { out, made: Generated::default(), time_ms: 1_794_700_800_000 };
    writer.push(EntryBody::User { text: task(&workspace), images: Vec::new() }, Kind::Other)?;
    let mut turn = 0_u64;
    let mut open_file = 0;
    while writer.made.tokens < tokens {
        turn += 1;
        if random.below(4) == 0 {
            open_file = random.skewed(workspace.files.len());
        }
        if random.below(120) == 0 {
            let text = format!("Please also look at {}.", workspace.files[open_file].0);
            writer.push(EntryBody::User { text, images: Vec::new() }, Kind::Other)?;
        }
        let calls = if random.below(statistics.parallel) == 0 { 2 + random.below(3) } else { 1 };
        let made: Vec<(Call, String, bool)> = (0..calls)
            .map(|at| action(&mut random, &workspace, open_file, &statistics, (turn, at)))
            .collect();
        let answer = EntryBody::Assistant {
            reasoning: Vec::new(),
            text: thought(&mut random, &workspace, statistics.sentences),
            calls: made.iter().map(|(call, _, _)| call.clone()).collect(),
        };
        writer.push(answer, Kind::Other)?;
        for (call, mut text, is_error) in made {
            if random.below(20) == 0 {
                // Seen once, asked for much later.
                let rare = format!("{}_{:08x}", STEMS[random.below(48)], random.next() as u32);
                text.push_str(&format!("request {rare} took {} ms\n", random.below(5000)));
                writer.made.questions.push((rare, writer.made.events + 1));
            }
            let capped = output_cap::cap(&text);
            let exit_code = Some(i32::from(is_error));
            let (text, blob) = (capped.text, capped.blob);
            let result =
                CallResult { call: call.id, text, is_error, exit_code, blob, ..CallResult::default() };
            writer.push(EntryBody::Result(result), Kind::Observation)?;
        }
    }
    Ok(writer.made)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Observation,
    Other,
}

struct Writer<'a, W> {
    out: &'a mut W,
    made: Generated,
    time_ms: i64,
}

impl<W: Write> Writer<'_, W> {
    fn push(&mut self, body: EntryBody, kind: Kind) -> Result<()> {
        self.made.events += 1;
        self.time_ms += 7_000;
        let entry = Entry::new(EventId(self.made.events), self.time_ms, body);
        let bytes = context::recall::text_of(&entry).len() as u64;
        self.made.tokens += u64::from(entry.tokens);
        self.made.text_bytes += bytes;
        if kind == Kind::Observation {
            self.made.observation_bytes += bytes;
        }
        writeln!(self.out, "{}", entry.encode()?)?;
        Ok(())
    }
}

fn task(workspace: &Workspace) -> String {
    format!(
        "The tests of {} fail now and then. Find out why, mend it, and write down what you have learned. Do not change \
         the public interface.",
        workspace.files[0].0
    )
}

fn thought(random: &mut Random, workspace: &Workspace, median: f64) -> String {
    let sentences = 2 + random.heavy(median, 0.8) as usize;
    let mut text = String::new();
    for _ in 0..sentences.min(40) {
        let mut name = || &workspace.names[random.skewed(workspace.names.len())];
        let (a, b) = (name(), name());
        text.push_str(&match random.below(4) {
            0 => format!("The value of `{a}` is set before `{b}` is known, so the order matters here. "),
            1 => format!("I will look at how `{a}` is used and whether `{b}` can be empty. "),
            2 => format!("That did not help; `{a}` still differs. "),
            _ => format!("Now the call of `{a}` needs `{b}` as its second argument. "),
        });
    }
    text
}

/// Writes a call and its output.
fn action(
    random: &mut Random,
    workspace: &Workspace,
    file: usize,
    statistics: &Statistics,
    (turn, at): (u64, usize),
) -> (Call, String, bool) {
    let (path, lines) = &workspace.files[file];
    let call =
        |name: &str, arguments| Call { id: format!("call_{turn}_{at}"), name: name.to_owned(), arguments };
    let size = random.heavy(statistics.lines, statistics.spread).clamp(1.0, 6_000.0) as usize;
    match random.below(10) {
        0..=3 => {
            let start = random.below(lines.len().saturating_sub(size).max(1));
            let view = lines.iter().cycle().skip(start).take(size).enumerate();
            let text = view.map(|(number, line)| format!("{:>5} {line}\n", start + number + 1)).collect();
            (call("read_file", json!({ "path": path, "start": start + 1, "lines": size })), text, false)
        }
        4..=5 => {
            let is_error = random.below(3) == 0;
            let command = format!("cargo test -p {}", STEMS[file % STEMS.len()]);
            (
                call("bash", json!({ "command": command })),
                test_run(random, workspace, size, is_error),
                is_error,
            )
        }
        6..=7 => {
            let name = &workspace.names[random.skewed(workspace.names.len())];
            let mut text = String::new();
            for _ in 0..size.min(300) {
                let (path, lines) = &workspace.files[random.below(workspace.files.len())];
                let number = random.below(lines.len());
                text.push_str(&format!("{path}:{number}:{}\n", lines[number]));
            }
            (call("bash", json!({ "command": format!("grep -rn {name} src") })), text, false)
        }
        8 => {
            let old: Vec<String> =
                (0..4 + random.below(20)).map(|_| code(random, &workspace.names)).collect();
            let new: Vec<String> =
                (0..6 + random.below(40)).map(|_| code(random, &workspace.names)).collect();
            let arguments = json!({ "path": path, "old": old.join("\n"), "new": new.join("\n") });
            (call("edit_file", arguments), format!("{path}: 1 place replaced\n"), false)
        }
        _ => {
            let text = format!(
                "[master {:07x}] wip\n {} files changed\n",
                random.next() as u32 >> 4,
                random.below(9)
            );
            (call("bash", json!({ "command": "git commit -am wip && git status --short" })), text, false)
        }
    }
}

fn test_run(random: &mut Random, workspace: &Workspace, size: usize, is_error: bool) -> String {
    let mut text = format!("running {size} tests\n");
    for _ in 0..size {
        text.push_str(&format!("test {} ... ok\n", workspace.names[random.skewed(workspace.names.len())]));
    }
    if is_error {
        let name = &workspace.names[random.below(workspace.names.len())];
        let (path, lines) = &workspace.files[random.below(workspace.files.len())];
        text.push_str(&format!(
            "thread '{name}' panicked at {path}:{}:9:\nassertion failed: left == right\nerror: test failed\n",
            random.below(lines.len())
        ));
    }
    let failed = usize::from(is_error);
    text + &format!(
        "test result: {}. {} passed; {failed} failed\n",
        if is_error { "FAILED" } else { "ok" },
        size - failed.min(size)
    )
}
