//! Tells the agent once, before its first turn, what its sandbox is: system, user, limits, programs and files. The text is
//! an event, so that every later prompt and every replay contains the same one. The egress policy is in the system prompt.

use std::fmt::Write as _;

use agent::{AgentEvent, Host, Notice, NoticeCode, Stopped};
use job::{Event, EventBody, JobSpec, SKIPPED_FOLDERS};
use protocol::{FileEntry, FileKind, FileOperation, FileReply};
use sandbox::{Image, LimitKind, Limits};

use super::super::DriverExit;
use super::host::AgentHost;
use super::stop_of;

/// Prints lines of the form `name=value`. Programs are asked for their versions in parallel, because some take long.
const SCRIPT: &str = r#"
[ -r /etc/os-release ] && . /etc/os-release && echo "system=$PRETTY_NAME"
echo "machine=$(uname -m)"
echo "user=$(id -un)"
echo "uid=$(id -u)"
for program in python3 node deno go rustc gcc java git; do
  command -v $program >/dev/null || continue
  case $program in go) option=version;; java) option=-version;; *) option=--version;; esac
  { version=$(timeout 5 $program $option 2>&1 </dev/null | head -n 1); echo "$program=$version"; } &
done
wait
for program in pip npm cargo make cmake pytest jq sqlite3 tmux gh psql; do
  command -v $program >/dev/null && echo "has=$program"
done
"#;

/// The programs with a version, as the script names them and as the agent reads them.
const VERSIONED: [(&str, &str); 8] = [
    ("python3", "Python"),
    ("node", "Node.js"),
    ("deno", "Deno"),
    ("go", "Go"),
    ("rustc", "Rust"),
    ("gcc", "GCC"),
    ("java", "Java"),
    ("git", "git"),
];
/// How much of a line from the sandbox is shown, in characters.
const MAX_CHARS: usize = 100;
/// How many folders deep the workspace is listed, and how many entries the guest returns.
const DEPTH: u32 = 2;
const MAX_ENTRIES: u32 = 1000;
/// How many lines of files a prompt has, and how many a small one has.
const MAX_LINES: usize = 40;
const FEW_LINES: usize = 12;
/// Windows below this size are small.
const SMALL_WINDOW_TOKENS: u32 = 32_768;

/// What a probe has to run in addition; empty if the agent was told before.
pub(super) fn script(log: &[Event]) -> &'static str {
    if is_described(log) { "" } else { SCRIPT }
}

/// Whether the agent was told before, or had to begin without.
fn is_described(log: &[Event]) -> bool {
    log.iter().any(|event| match &event.body {
        EventBody::TurnStarted(_) => true,
        EventBody::AgentNotified(notice) => notice.code == NoticeCode::Environment,
        _ => false,
    })
}

impl AgentHost<'_> {
    /// Tells the agent what its sandbox is, unless that was done before. `report` is what the sandbox printed.
    pub(super) async fn describe_environment(
        &self,
        log: &[Event],
        report: &str,
        context_tokens: u32,
    ) -> Result<(), DriverExit> {
        if is_described(log) {
            return Ok(());
        }
        let most_lines = if context_tokens < SMALL_WINDOW_TOKENS { FEW_LINES } else { MAX_LINES };
        let mut text = "[From Caisson] Your sandbox:\n".to_owned();
        text += &system_text(&self.driver.spec, report);
        text += &limits_text(&self.driver.spec.limits, &unenforced_limits(log));
        text += &programs_text(report);
        text += &self.workspace(most_lines).await.map_err(stop_of)?;
        let notice = Notice { code: NoticeCode::Environment, text: text.trim_end().to_owned() };
        self.record(vec![AgentEvent::Notified(notice)]).await.map_err(stop_of)
    }

    async fn workspace(&self, most_lines: usize) -> Result<String, Stopped> {
        let list = FileOperation::List {
            path: String::new(),
            depth: DEPTH,
            limit: MAX_ENTRIES,
            skip: SKIPPED_FOLDERS.map(str::to_owned).to_vec(),
        };
        Ok(match self.file(None, list).await? {
            Ok(FileReply::Entries { entries, truncated }) => workspace_text(&entries, truncated, most_lines),
            _ => String::new(),
        })
    }
}

/// The limits that the newest sandbox does not enforce.
fn unenforced_limits(log: &[Event]) -> Vec<LimitKind> {
    let newest = log.iter().rev().find_map(|event| match &event.body {
        EventBody::SandboxReady { unenforced, .. } => Some(unenforced),
        _ => None,
    });
    newest.into_iter().flatten().map(|unenforced| unenforced.limit).collect()
}

/// The values that the script printed under a name.
fn values<'a>(report: &'a str, name: &'a str) -> impl Iterator<Item = String> + 'a {
    let value = move |line: &'a str| line.split_once('=').filter(|(key, _)| *key == name);
    report.lines().filter_map(value).map(|(_, value)| plain(value.trim()))
}

/// A text from the sandbox as one short line.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(MAX_CHARS).collect()
}

fn system_text(spec: &JobSpec, report: &str) -> String {
    let value = |name| values(report, name).next().filter(|value| !value.is_empty());
    let mut parts: Vec<String> = value("system").into_iter().chain(value("machine")).collect();
    match &spec.image {
        Image::Host => parts.push("with the programs of its host".into()),
        Image::Named(name) => parts.push(format!("image `{name}`")),
        Image::Directory(_) => {}
    }
    let mut text = format!("System: {}.", parts.join(", "));
    if let (Some(user), Some(uid)) = (value("user"), value("uid")) {
        let root = if uid == "0" { "" } else { ", not root" };
        let _ = write!(text, " You are `{user}` (user id {uid}){root}.");
    }
    text + "\n"
}

/// The limits of the job, which are lower than what programs read about the machine.
fn limits_text(limits: &Limits, unenforced: &[LimitKind]) -> String {
    let millis = limits.cpu_millis.value();
    let (whole, rest) = (millis / 1000, format!("{:03}", millis % 1000));
    let cpus = match (whole, rest.trim_end_matches('0')) {
        (1, "") => "1 CPU".to_owned(),
        (_, "") => format!("{whole} CPUs"),
        (_, rest) => format!("{whole}.{rest} CPUs"),
    };
    let known = [
        (LimitKind::Cpu, cpus),
        (LimitKind::Memory, format!("{} MiB of memory", limits.memory_mib.value())),
        (LimitKind::Disk, format!("{} MiB of disk", limits.disk_mib.value())),
        (LimitKind::Pids, format!("{} processes", limits.pids.value())),
    ];
    let enforced: Vec<String> =
        known.into_iter().filter(|(kind, _)| !unenforced.contains(kind)).map(|(_, text)| text).collect();
    if enforced.is_empty() {
        return String::new();
    }
    format!("You may use {}, whatever programs say about the machine.\n", enforced.join(", "))
}

fn programs_text(report: &str) -> String {
    let versioned = VERSIONED.into_iter().filter_map(|(program, name)| {
        let line = values(report, program).next()?;
        Some(version_of(&line).map_or(name.to_owned(), |version| format!("{name} {version}")))
    });
    let known: Vec<String> = versioned.chain(values(report, "has")).collect();
    if known.is_empty() { String::new() } else { format!("Programs, among others: {}.\n", known.join(", ")) }
}

/// The version in the first line that a program prints about itself, such as `Python 3.13.5` or `go version go1.24.4`.
fn version_of(line: &str) -> Option<&str> {
    line.split_whitespace()
        .map(|word| word.trim_start_matches(|c: char| !c.is_ascii_digit()))
        .map(|word| word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()))
        .find(|word| word.contains('.'))
}

/// The files of the workspace, one line each. If there are too many, only those at the top.
fn workspace_text(entries: &[FileEntry], is_cut: bool, most_lines: usize) -> String {
    let is_hidden = |entry: &&FileEntry| {
        let is_empty_downloads =
            entry.path == "downloads" && !entries.iter().any(|other| other.path.starts_with("downloads/"));
        is_empty_downloads || entry.path.split('/').any(|part| part == ".caisson" || part == "__pycache__")
    };
    let shown: Vec<&FileEntry> = entries.iter().filter(|entry| !is_hidden(entry)).collect();
    if shown.is_empty() {
        return "/workspace is empty.\n".into();
    }
    let top = || shown.iter().filter(|entry| !entry.path.contains('/')).copied().collect::<Vec<_>>();
    let (chosen, levels) =
        if shown.len() > most_lines { (top(), "its top level") } else { (shown.clone(), "two levels") };
    let mut text = format!("In /workspace ({levels}):\n");
    for entry in chosen.iter().take(most_lines) {
        text += &file_line(entry);
    }
    let more = chosen.len().saturating_sub(most_lines);
    if more > 0 || is_cut {
        text += "  and more\n";
    }
    text
}

fn file_line(entry: &FileEntry) -> String {
    let path = plain(&entry.path);
    match entry.stat.kind {
        FileKind::Directory => format!("  {path}/\n"),
        FileKind::Symlink => format!("  {path} (symbolic link)\n"),
        FileKind::File | FileKind::Other => format!("  {path} ({} bytes)\n", entry.stat.size),
    }
}

#[cfg(test)]
mod tests {
    use protocol::FileStat;
    use sandbox::Limit;

    use super::*;

    fn entry(path: &str, kind: FileKind, size: u64) -> FileEntry {
        let stat = FileStat { kind, size, mode: 0o644, modified_ms: 0, link_target: None };
        FileEntry { path: path.into(), stat }
    }

    #[test]
    fn versions_are_found_in_what_programs_print() {
        for (line, version) in [
            ("Python 3.13.5", Some("3.13.5")),
            ("v20.19.2", Some("20.19.2")),
            ("go version go1.24.4 linux/amd64", Some("1.24.4")),
            ("gcc (Debian 14.2.0-19) 14.2.0", Some("14.2.0-19")),
            ("openjdk version \"21.0.7\" 2025-04-15", Some("21.0.7")),
            ("rustc 1.90.0 (1159e78c4 2025-09-14)", Some("1.90.0")),
            ("error: no toolchain", None),
        ] {
            assert_eq!(version_of(line), version, "{line}");
        }
    }

    #[test]
    fn programs_are_listed_in_the_same_order_whichever_answers_first() {
        let text = programs_text("git=git version 2.47.2\nhas=pip\npython3=Python 3.13.5\nnode=\nhas=make\n");
        assert_eq!(text, "Programs, among others: Python 3.13.5, Node.js, git 2.47.2, pip, make.\n");
        assert_eq!(programs_text("machine=x86_64\n"), "");
    }

    #[test]
    fn only_limits_that_hold_are_listed() {
        let limits = Limits { cpu_millis: Limit::Default(1500), ..Limits::default() };
        let text = limits_text(&limits, &[LimitKind::Disk, LimitKind::Pids]);
        assert_eq!(
            text,
            "You may use 1.5 CPUs, 4096 MiB of memory, whatever programs say about the machine.\n"
        );
        let one = Limits { cpu_millis: Limit::Required(1000), ..limits };
        assert!(
            limits_text(&one, &[]).starts_with("You may use 1 CPU, 4096 MiB of memory, 8192 MiB of disk, ")
        );
        assert_eq!(limits_text(&limits, &LimitKind::ALL), "");
    }

    #[test]
    fn text_from_the_sandbox_is_one_short_line() {
        let report = format!("system=Evil\u{1b}[2J {}\n", "x".repeat(500));
        let value = values(&report, "system").next().unwrap();
        assert!(value.starts_with("Evil?[2J xxx") && value.chars().count() == MAX_CHARS, "{value}");
    }

    #[test]
    fn workspace_is_listed_by_its_top_level_if_it_is_large() {
        let mut entries = vec![
            entry(".caisson", FileKind::Directory, 0),
            entry("data.csv", FileKind::File, 1234),
            entry("downloads", FileKind::Directory, 0),
            entry("src", FileKind::Directory, 0),
            entry("src/a\nb.rs", FileKind::File, 7),
        ];
        let text = workspace_text(&entries, false, 4);
        assert_eq!(
            text,
            "In /workspace (two levels):\n  data.csv (1234 bytes)\n  src/\n  src/a?b.rs (7 bytes)\n"
        );
        entries.extend((0..9).map(|number| entry(&format!("src/{number}"), FileKind::File, 1)));
        let text = workspace_text(&entries, true, 4);
        assert_eq!(text, "In /workspace (its top level):\n  data.csv (1234 bytes)\n  src/\n  and more\n");
        assert_eq!(workspace_text(&entries[..1], false, 4), "/workspace is empty.\n");
    }
}
