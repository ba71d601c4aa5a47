//! Looks at a configuration setting by setting: what is wrong and where, and where each value comes from.
//!
//! What settings there are, what they mean and their defaults stand in `caisson.example.toml`, which is read here too.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::cli::HostArguments;
use crate::config::{self, Config};
use crate::config_file::RawConfig;

const EXAMPLE: &str = include_str!("../../../caisson.example.toml");
/// Settings that the environment can give, and the variable.
const VARIABLES: [(&str, &str); 4] = [
    ("data", "CAISSON_DATA"),
    ("run_dir", "CAISSON_RUN_DIR"),
    ("listen", "CAISSON_LISTEN"),
    ("log", "CAISSON_LOG"),
];

/// What was found.
pub(crate) struct Report {
    /// The file that was read, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// What is wrong.
    pub(crate) problems: Vec<Problem>,
    /// Every setting with its value.
    pub(crate) settings: Vec<Setting>,
}

/// Something wrong.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// `file:line`, or where else it was said.
    pub(crate) place: String,
    /// What is wrong, and with which setting.
    pub(crate) text: String,
    /// What the setting means and may be.
    pub(crate) about: Option<String>,
}

/// A setting and its value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    /// As it would stand in the file; absent where nothing was said and there is no fixed default.
    pub(crate) value: Option<String>,
    /// Where the value comes from.
    pub(crate) origin: String,
}

/// A setting that the example describes.
struct Known {
    key: String,
    default: Option<String>,
    about: String,
}

/// A setting in the file.
struct Written<'a> {
    key: String,
    value: &'a str,
    line: usize,
}

/// Checks all of it.
pub(crate) fn check(arguments: &HostArguments) -> Result<Report> {
    let file = config::file(arguments.config.as_deref());
    let text = match &file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("reading the configuration {}", path.display()))?,
        None => String::new(),
    };
    let known = known_settings(EXAMPLE);
    let name = file.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let (written, mut problems) = match DeTable::parse(&text) {
        Ok(table) => {
            let mut written = Vec::new();
            collect(table.get_ref(), "", &text, &mut written);
            let problems = written.iter().filter_map(|setting| problem_of(setting, &name, &known)).collect();
            (written, problems)
        }
        Err(error) => (Vec::new(), vec![not_toml(&error, &name, &text)]),
    };
    if problems.is_empty()
        && let Err(error) = Config::load(arguments, &[], false)
    {
        problems.push(joint_problem(&error, &name, &written));
    }
    let settings = known.iter().map(|known| effective(known, &written, &name, arguments)).collect();
    Ok(Report { file, problems, settings })
}

fn not_toml(error: &toml::de::Error, name: &str, text: &str) -> Problem {
    let line = line_of(text, error.span().unwrap_or_default().start);
    Problem { place: format!("{name}:{line}"), text: error.message().to_owned(), about: None }
}

/// What only shows when all settings are seen together.
fn joint_problem(error: &anyhow::Error, name: &str, written: &[Written<'_>]) -> Problem {
    let text = format!("{error:#}");
    let key = text.split(':').next().unwrap_or_default();
    let line = written.iter().find(|setting| setting.key == key).map(|setting| setting.line);
    let place =
        line.map_or_else(|| "flags, environment and file together".into(), |line| format!("{name}:{line}"));
    Problem { place, text, about: None }
}

/// All settings of a table and of those in it.
fn collect<'a>(table: &DeTable<'_>, above: &str, text: &'a str, written: &mut Vec<Written<'a>>) {
    for (key, value) in table {
        let name =
            if above.is_empty() { key.get_ref().to_string() } else { format!("{above}.{}", key.get_ref()) };
        match value.get_ref() {
            // `{ allow = [...] }` is a value; what has a head of its own is a section.
            DeValue::Table(inner) if !text[value.span()].starts_with('{') => {
                collect(inner, &name, text, written)
            }
            _ => written.push(Written {
                value: text_of(value, text),
                line: line_of(text, key.span().start),
                key: name,
            }),
        }
    }
    written.sort_by_key(|setting| setting.line);
}

fn text_of<'a>(value: &Spanned<DeValue<'_>>, text: &'a str) -> &'a str {
    let Range { start, end } = value.span();
    text.get(start..end).unwrap_or_default()
}

fn line_of(text: &str, position: usize) -> usize {
    text.bytes().take(position).filter(|byte| *byte == b'\n').count() + 1
}

/// What is wrong with one setting, seen alone.
fn problem_of(setting: &Written<'_>, name: &str, known: &[Known]) -> Option<Problem> {
    let place = format!("{name}:{}", setting.line);
    let key = &setting.key;
    let Some(described) = known.iter().find(|known| known.key == *key) else {
        return Some(Problem { place, text: unknown_key(key, known), about: None });
    };
    let alone = match key.rsplit_once('.') {
        Some((section, rest)) => format!("[{section}]\n{rest} = {}\n", setting.value),
        None => format!("{key} = {}\n", setting.value),
    };
    let error = match toml::from_str::<RawConfig>(&alone) {
        // Whether others may be let in is a question to all settings together.
        Ok(raw) => Config::from_raw(raw, &HostArguments::default(), &[], true)
            .err()
            .map(|error| format!("{error:#}")),
        Err(error) => Some(for_people(error.message())),
    }?;
    let text = if error.starts_with(key.as_str()) { error } else { format!("{key}: {error}") };
    Some(Problem { place, text, about: Some(described.about.clone()).filter(|about| !about.is_empty()) })
}

/// The names of Rust's numbers mean nothing to most people.
fn for_people(message: &str) -> String {
    let mut text = message.trim().replace('\n', ", ");
    for name in ["u16", "u32", "u64", "usize"] {
        text = text.replace(&format!("expected {name}"), "expected a whole number that is not negative");
    }
    text.replace("expected f64", "expected a number").replace("expected a sequence", "expected a list")
}

fn unknown_key(key: &str, known: &[Known]) -> String {
    let (section, _) = key.rsplit_once('.').unwrap_or_default();
    let near = known.iter().map(|known| (distance(&known.key, key), known.key.as_str())).min();
    if let Some((_, near)) = near.filter(|(distance, _)| *distance <= 3) {
        return format!("{key}: there is no such setting; did you mean {near}?");
    }
    let in_section = known.iter().filter(|known| known.key.rsplit_once('.').unwrap_or_default().0 == section);
    let names: Vec<&str> = in_section.map(|known| known.key.as_str()).collect();
    if names.is_empty() {
        return format!("{key}: there is no section [{section}]; caisson.example.toml has every setting");
    }
    format!("{key}: there is no such setting; there are {}", names.join(", "))
}

/// How many letters one must change, add or leave out to get from one word to the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for column in 0..other.len() {
            let changed = diagonal + usize::from(letter != other[column]);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

fn effective(known: &Known, written: &[Written<'_>], name: &str, arguments: &HostArguments) -> Setting {
    let key = known.key.clone();
    let flag = match key.as_str() {
        "data" => arguments.data.as_deref().map(|path| ("--data", path)),
        "run_dir" => arguments.run_dir.as_deref().map(|path| ("--run-dir", path)),
        _ => None,
    };
    if let Some((flag, path)) = flag {
        return Setting { key, value: Some(quoted(path)), origin: format!("flag {flag}") };
    }
    let variable = VARIABLES.iter().find(|(setting, _)| *setting == key).map(|(_, variable)| *variable);
    if let Some((variable, value)) = variable.and_then(|name| Some((name, config::variable(name)?))) {
        return Setting {
            key,
            value: Some(quoted(Path::new(&value))),
            origin: format!("environment {variable}"),
        };
    }
    match written.iter().find(|setting| setting.key == key) {
        Some(setting) => Setting {
            value: Some(setting.value.split_whitespace().collect::<Vec<_>>().join(" ")),
            origin: format!("{name}:{}", setting.line),
            key,
        },
        None => Setting { key, value: known.default.clone(), origin: "default".into() },
    }
}

fn quoted(value: &Path) -> String {
    format!("\"{}\"", value.display())
}

/// Reads the example: a setting a line, what it means in the comment above; one without a default is in a comment.
fn known_settings(example: &str) -> Vec<Known> {
    let mut known: Vec<Known> = Vec::new();
    let (mut section, mut about, mut is_new) = (String::new(), String::new(), true);
    for line in example.lines() {
        let comment = line.strip_prefix('#').map(str::trim);
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = format!("{name}.");
            about.clear();
        } else if let Some((name, value)) =
            comment.unwrap_or(line).split_once(" = ").filter(|(name, _)| is_name(name))
        {
            let default = comment.is_none().then(|| value.to_owned());
            known.push(Known { key: format!("{section}{name}"), default, about: about.clone() });
            is_new = true;
        } else if let Some(comment) = comment {
            if std::mem::take(&mut is_new) {
                about.clear();
            } else if !about.is_empty() {
                about.push(' ');
            }
            about += comment;
        } else {
            about.clear();
            is_new = true;
        }
    }
    known
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("caisson.toml");
        std::fs::write(&file, text).unwrap();
        check(&HostArguments { config: Some(file), ..HostArguments::default() }).unwrap()
    }

    #[test]
    fn each_error_is_told_with_its_line_and_what_is_allowed() {
        let text = "log = \"info\"\ncolour = 1\n\n[jobs]\nmax_runing = 3\nmax_losses = \"x\"\n\n[limits]\nmemory_mib = 1\n";
        let problems = report(text).problems;
        let told: Vec<(String, &str)> = problems
            .iter()
            .map(|problem| (problem.place.rsplit(':').next().unwrap().to_owned(), problem.text.as_str()))
            .collect();
        assert_eq!(told.iter().map(|(line, _)| line.as_str()).collect::<Vec<_>>(), ["2", "5", "6", "9"]);
        assert!(told[0].1.starts_with("colour: there is no such setting; there are listen"), "{told:?}");
        assert!(told[1].1.contains("did you mean jobs.max_running?"), "{told:?}");
        assert!(told[2].1.starts_with("jobs.max_losses: invalid type: string"), "{told:?}");
        assert_eq!(told[3].1, "limits.memory_mib: 1 is less than 16");
        assert!(problems[2].about.as_deref().is_some_and(|about| about.contains("lose its sandbox")));
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        let problems = report("log = \"info\"\nlisten = [\n").problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].place.contains("caisson.toml:"), "{problems:?}");
    }

    #[test]
    fn settings_that_do_not_fit_together_are_told_at_the_line_of_the_first() {
        let problems = report("\nlisten = [\"0.0.0.0:8000\"]\n").problems;
        assert!(problems[0].place.ends_with("caisson.toml:2"), "{problems:?}");
        assert!(problems[0].text.contains("--insecure-listen"), "{problems:?}");
        assert!(report("listen = [\"0.0.0.0:8000\"]\ninsecure_listen = true\n").problems.is_empty());
    }

    #[test]
    fn every_value_says_where_it_comes_from() {
        let report = report("[egress]\ndefault = { allow = [\"example.org\"] }\n");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let find = |key: &str| report.settings.iter().find(|setting| setting.key == key).unwrap();
        assert!(find("egress.default").origin.ends_with("caisson.toml:2"));
        assert_eq!(find("egress.default").value.as_deref(), Some("{ allow = [\"example.org\"] }"));
        assert_eq!(
            (find("jobs.max_queued").origin.as_str(), find("jobs.max_queued").value.as_deref()),
            ("default", Some("10000"))
        );
        assert_eq!(find("jobs.max_running").value, None);
    }

    #[test]
    fn the_example_itself_is_right() {
        let report = report(EXAMPLE);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}
