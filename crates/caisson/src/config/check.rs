//! Checks a configuration setting by setting: what is wrong and where, and where each value comes from.
//!
//! The settings with their meaning and defaults are read from `caisson.example.toml`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::de::DeTable;
use toml::{Table, Value};

use super::checked::Config;
use super::environment;
use super::example::{EXAMPLE, KnownSetting, is_open, known_settings, unknown_key};
use super::file::{self, RawConfig};
use super::limits;
use super::written::{FileSetting, Reader, line_of, table_of};
use crate::arguments::HostArguments;
use crate::coded_error::CodedError;

/// The error code of configuration errors.
const CODE: &str = "configuration";

/// Settings that can come from the environment, and their variables.
const VARIABLES: [(&str, &str); 8] = [
    ("data", "CAISSON_DATA"),
    ("run_dir", "CAISSON_RUN_DIR"),
    ("images", "CAISSON_IMAGES"),
    ("listen", "CAISSON_LISTEN"),
    ("log", "CAISSON_LOG"),
    ("backend.kind", "CAISSON_BACKEND"),
    ("docker.host", "CAISSON_DOCKER_HOST"),
    ("model.name", "CAISSON_MODEL"),
];

/// Sections whose settings are only valid together.
const INTERDEPENDENT_SECTIONS: [&str; 2] = ["tls", "oidc"];

/// The result of a check.
pub(crate) struct Report {
    /// The configuration file, if there is one.
    pub(crate) file: Option<PathBuf>,
    pub(crate) problems: Vec<Problem>,
    /// Every setting with its value.
    pub(crate) settings: Vec<Setting>,
    /// Valid settings that deserve a second look.
    pub(crate) hints: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// `file:line`, or the name of another source.
    pub(crate) location: String,
    /// The problem, and the setting that has it.
    pub(crate) text: String,
    /// What the setting means and which values it accepts.
    pub(crate) about: Option<String>,
}

impl Problem {
    /// The problem on one line, and the setting's meaning on a second one.
    fn line(&self) -> String {
        let about = self.about.as_ref().map(|about| format!("\n    {about}")).unwrap_or_default();
        format!("{}: {}{about}", self.location, self.text)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    /// The value in TOML; `None` if it is not set and has no fixed default.
    pub(crate) value: Option<String>,
    /// Where the value comes from.
    pub(crate) origin: String,
}

/// Settings from flags.
#[derive(Clone, Copy)]
struct Overrides<'a> {
    host: &'a HostArguments,
    listen: &'a [SocketAddr],
    insecure_listen: bool,
}

/// The error for an invalid configuration, with all problems as far as they can be determined.
pub(crate) fn explain(
    error: &anyhow::Error,
    host: &HostArguments,
    listen: &[SocketAddr],
    insecure_listen: bool,
) -> anyhow::Error {
    let report = check_typed(Overrides { host, listen, insecure_listen });
    let problems = report.map(|report| report.problems).unwrap_or_default();
    let lines: Vec<String> = problems.iter().map(Problem::line).collect();
    match lines.as_slice() {
        [] => CodedError::error(CODE, format!("{error:#}")),
        [alone] => CodedError::error(CODE, format!("in the configuration: {alone}")),
        several => CodedError::error(CODE, format!("in the configuration:\n{}", several.join("\n"))),
    }
}

/// Warnings about environment variables that look like settings but are not read, including through the file.
pub(crate) fn unknown_variables(arguments: &HostArguments) -> Vec<String> {
    let file = file::path(arguments.config.as_deref());
    let text = file.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    environment::unknown_variables(&text)
}

/// Checks the whole configuration.
pub(crate) fn check(arguments: &HostArguments) -> Result<Report> {
    check_typed(Overrides { host: arguments, listen: &[], insecure_listen: false })
}

fn check_typed(overrides: Overrides<'_>) -> Result<Report> {
    let arguments = overrides.host;
    let file = file::path(arguments.config.as_deref());
    let text = match &file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("reading the configuration {}", path.display()))?,
        None => String::new(),
    };
    let known = known_settings(EXAMPLE);
    let name = file.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let (written, problems) = match (DeTable::parse(&text), text.parse::<Table>()) {
        (Ok(spans), Ok(values)) => {
            let mut written = Vec::new();
            let reader = Reader { text: &text, known: &known };
            reader.collect(spans.get_ref(), &values, &[], &mut written);
            written.sort_by_key(|setting| setting.line);
            let problems = problems_of(&written, &name, &known, overrides);
            (written, problems)
        }
        (Err(error), _) | (_, Err(error)) => (Vec::new(), vec![not_toml(&error, &name, &text)]),
    };
    let mut settings: Vec<Setting> =
        known.iter().map(|known| effective(known, &written, &name, arguments)).collect();
    let others = written.iter().filter(|setting| !known.iter().any(|known| known.key == setting.key));
    settings.extend(others.map(|setting| as_written(setting, &name)));
    show_ceilings(&mut settings, &text, overrides);
    let mut hints = hints_of(&settings);
    hints.extend(environment::unknown_variables(&text));
    Ok(Report { file, problems, settings, hints })
}

/// Shows the request limits that are derived from the host.
fn show_ceilings(settings: &mut [Setting], text: &str, overrides: Overrides<'_>) {
    let Overrides { host, listen, insecure_listen } = overrides;
    let Ok(raw) = toml::from_str::<RawConfig>(text) else { return };
    let Ok(config) = Config::from_raw(raw, host, listen, insecure_listen) else { return };
    for setting in settings.iter_mut().filter(|setting| setting.value.is_none()) {
        if let Some(value) = limits::as_toml(&setting.key, &config.jobs.ceilings.everybody) {
            setting.value = Some(value);
            setting.origin = "this host".into();
        }
    }
}

/// Hints about secrets that any submitter of a job can have sent to any host.
fn hints_of(settings: &[Setting]) -> Vec<String> {
    let named = |setting: &Setting| {
        let name = setting.key.strip_prefix("secrets.")?.split('.').next()?;
        Some(name.to_owned())
    };
    let names: std::collections::BTreeSet<String> = settings.iter().filter_map(named).collect();
    let is_bound = |name: &String| {
        let key = format!("secrets.{name}.hosts");
        let inline = |setting: &Setting| setting.value.as_ref().is_some_and(|value| value.contains("hosts"));
        settings.iter().any(|setting| {
            setting.key == key || (setting.key == format!("secrets.{name}") && inline(setting))
        })
    };
    let hint = |name: &String| {
        format!(
            "secrets.{name}: has no `hosts`, so every submitter can send it to any host; list the allowed hosts in `hosts`"
        )
    };
    names.iter().filter(|name| !is_bound(name)).map(hint).collect()
}

fn not_toml(error: &toml::de::Error, name: &str, text: &str) -> Problem {
    let line = line_of(text, error.span().unwrap_or_default().start);
    // What the parser would have accepted there is in the terms of its grammar.
    let message = match error.message().split(", expected ").next().unwrap_or_default() {
        "duplicate key" => "a setting is given twice",
        "invalid float" => "a value is not a number, and text needs quotation marks",
        message => message,
    };
    let text = format!("this is not valid TOML: {message}");
    Problem { location: format!("{name}:{line}"), text, about: None }
}

/// All problems, each with its setting: unknown names first, then invalid values, then invalid combinations.
fn problems_of(
    written: &[FileSetting],
    name: &str,
    known: &[KnownSetting],
    overrides: Overrides<'_>,
) -> Vec<Problem> {
    let mut problems: Vec<(usize, Problem)> = Vec::new();
    let mut good: Vec<FileSetting> = Vec::new();
    for setting in written {
        let location = format!("{name}:{}", setting.line);
        let described = known.iter().find(|known| known.key == setting.key);
        if described.is_none() && !is_open(&setting.key) {
            let text = unknown_key(&setting.key, known);
            problems.push((setting.line, Problem { location, text, about: None }));
        } else if let Err(error) = parse([setting]) {
            let text = if names(&error, setting) { error } else { format!("{}: {error}", setting.key) };
            problems.push((setting.line, Problem { location, text, about: about(described) }));
        } else {
            good.push(setting.clone());
        }
    }
    // Remove one offending setting after another until the rest is valid.
    while let Some(error) = error_of(&good, overrides) {
        // The error also occurs without any of these settings, so none of them caused it.
        if error_of(&[], overrides).as_ref() == Some(&error) {
            let location = "flags and environment".into();
            problems.push((usize::MAX, Problem { location, text: error, about: None }));
            break;
        }
        let Some(index) = offending_setting(&error, &good) else {
            // Earlier problems may have caused this one.
            if problems.is_empty() {
                let location = "flags, environment and file together".into();
                problems.push((usize::MAX, Problem { location, text: error, about: None }));
            }
            break;
        };
        let setting = good.remove(index);
        let text = if names(&error, &setting) { error } else { format!("{}: {error}", setting.key) };
        let described = known.iter().find(|known| known.key == setting.key);
        let location = format!("{name}:{}", setting.line);
        problems.push((setting.line, Problem { location, text, about: about(described) }));
        // The other settings of such a section depend on the removed one and would produce errors too.
        let section = setting.section().to_owned();
        if INTERDEPENDENT_SECTIONS.contains(&section.as_str()) {
            good.retain(|other| other.section() != section);
        }
    }
    problems.sort_by_key(|(line, _)| *line);
    problems.into_iter().map(|(_, problem)| problem).collect()
}

fn about(described: Option<&KnownSetting>) -> Option<String> {
    described.map(|known| known.about.clone()).filter(|about| !about.is_empty())
}

/// The error when these settings are combined.
fn error_of(settings: &[FileSetting], overrides: Overrides<'_>) -> Option<String> {
    let Overrides { host, listen, insecure_listen } = overrides;
    match parse(settings) {
        Ok(raw) => {
            let checked =
                Config::from_raw(raw, host, listen, insecure_listen).and_then(|config| config.check_reach());
            checked.err().map(|error| format!("{error:#}"))
        }
        Err(error) => Some(error),
    }
}

/// The key that an error message starts with, if any.
fn key_of(error: &str) -> &str {
    error.split(':').next().unwrap_or_default()
}

/// Whether an error message is about this setting, a part of it, or its section.
fn names(error: &str, setting: &FileSetting) -> bool {
    let key = key_of(error);
    let below =
        |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with(['.', '[']));
    key == setting.key || below(key, &setting.key) || below(&setting.key, key)
}

/// The setting that an error is about.
fn offending_setting(error: &str, settings: &[FileSetting]) -> Option<usize> {
    let key = key_of(error);
    let exact = settings.iter().position(|setting| setting.key == key);
    let by_name = || settings.iter().position(|setting| names(error, setting));
    // A missing setting is reported at the line of another setting of its section.
    let section = key.rsplit_once('.').map(|(section, _)| section);
    let by_section = || settings.iter().position(|setting| Some(setting.section()) == section);
    let alone = || {
        let says_the_same = |setting: &FileSetting| {
            let overrides =
                Overrides { host: &HostArguments::default(), listen: &[], insecure_listen: false };
            error_of(std::slice::from_ref(setting), overrides).as_deref() == Some(error)
        };
        settings.iter().position(says_the_same)
    };
    exact.or_else(by_name).or_else(by_section).or_else(alone)
}

/// The settings as a configuration. The error begins with the setting, and calls objects tables, as TOML does.
fn parse<'a>(settings: impl IntoIterator<Item = &'a FileSetting>) -> Result<RawConfig, String> {
    job::read(Value::Table(table_of(settings))).map_err(|error| {
        let problem =
            error.problem.replace("unknown field", "unknown setting").replace("an object", "a table");
        let problem = problem.replace('\n', ", ");
        if error.field.is_empty() { problem } else { format!("{}: {problem}", error.field) }
    })
}

fn effective(
    known: &KnownSetting,
    written: &[FileSetting],
    name: &str,
    arguments: &HostArguments,
) -> Setting {
    let key = known.key.clone();
    let flag = match key.as_str() {
        "data" => arguments.data.as_deref().map(|path| ("--data", path)),
        "run_dir" => arguments.run_dir.as_deref().map(|path| ("--run-dir", path)),
        "backend.kind" => arguments.backend.as_deref().map(|kind| ("--backend", Path::new(kind))),
        _ => None,
    };
    if let Some((flag, path)) = flag {
        return Setting { key, value: Some(quoted(path)), origin: format!("flag {flag}") };
    }
    let variable = VARIABLES.iter().find(|(setting, _)| *setting == key).map(|(_, variable)| *variable);
    if let Some((variable, value)) = variable.and_then(|name| Some((name, environment::variable(name)?))) {
        return Setting {
            key,
            value: Some(quoted(Path::new(&value))),
            origin: format!("environment {variable}"),
        };
    }
    match written.iter().find(|setting| setting.key == key) {
        Some(setting) => as_written(setting, name),
        None => Setting { key, value: known.default.clone(), origin: "default".into() },
    }
}

fn as_written(setting: &FileSetting, name: &str) -> Setting {
    Setting {
        key: setting.key.clone(),
        value: Some(setting.text.split_whitespace().collect::<Vec<_>>().join(" ")),
        origin: format!("{name}:{}", setting.line),
    }
}

fn quoted(value: &Path) -> String {
    format!("\"{}\"", value.display())
}
