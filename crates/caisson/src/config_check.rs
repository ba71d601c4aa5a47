//! Looks at a configuration setting by setting: what is wrong and where, and where each value comes from.
//!
//! What settings there are, what they mean and their defaults stand in `caisson.example.toml`, which is read here too.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use crate::cli::HostArguments;
use crate::config::{self, Config};
use crate::config_example::{EXAMPLE, Known, is_open, known_settings, unknown_key};
use crate::config_file::RawConfig;

/// Settings that the environment can give, and the variable.
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

/// Sections whose settings are right or wrong only together.
const TOGETHER: [&str; 2] = ["tls", "oidc"];

/// What was found.
pub(crate) struct Report {
    /// The file that was read, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// What is wrong.
    pub(crate) problems: Vec<Problem>,
    /// Every setting with its value.
    pub(crate) settings: Vec<Setting>,
    /// What is right and yet worth a second look.
    pub(crate) hints: Vec<String>,
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

/// A setting in the file.
#[derive(Clone)]
struct Written {
    key: String,
    /// Where it stands in the file's tables.
    path: Vec<String>,
    /// As it is written.
    text: String,
    value: Value,
    line: usize,
}

impl Written {
    /// The section that it stands in.
    fn section(&self) -> &str {
        self.key.rsplit_once('.').map_or("", |(section, _)| section)
    }
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
    let (written, problems) = match (DeTable::parse(&text), text.parse::<Table>()) {
        (Ok(spans), Ok(values)) => {
            let mut written = Vec::new();
            let reader = Reader { text: &text, known: &known };
            reader.collect(spans.get_ref(), &values, &[], &mut written);
            written.sort_by_key(|setting| setting.line);
            let problems = problems_of(&written, &name, &known, arguments);
            (written, problems)
        }
        (Err(error), _) | (_, Err(error)) => (Vec::new(), vec![not_toml(&error, &name, &text)]),
    };
    let mut settings: Vec<Setting> =
        known.iter().map(|known| effective(known, &written, &name, arguments)).collect();
    let others = written.iter().filter(|setting| !known.iter().any(|known| known.key == setting.key));
    settings.extend(others.map(|setting| as_written(setting, &name)));
    let hints = hints_of(&settings);
    Ok(Report { file, problems, settings, hints })
}

/// Secrets that whoever may submit a job can have sent anywhere.
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
            "secrets.{name}: has no `hosts`, so whoever may submit a job can have it sent to any host; name those that it is for"
        )
    };
    names.iter().filter(|name| !is_bound(name)).map(hint).collect()
}

fn not_toml(error: &toml::de::Error, name: &str, text: &str) -> Problem {
    let line = line_of(text, error.span().unwrap_or_default().start);
    Problem { place: format!("{name}:{line}"), text: error.message().to_owned(), about: None }
}

/// Finds the settings in a file.
struct Reader<'a> {
    text: &'a str,
    known: &'a [Known],
}

impl Reader<'_> {
    /// All settings of a table and of those in it.
    fn collect(&self, spans: &DeTable<'_>, values: &Table, above: &[String], written: &mut Vec<Written>) {
        for (key, span) in spans {
            let Some(value) = values.get(key.get_ref().as_ref()) else { continue };
            let path: Vec<String> = above.iter().cloned().chain([key.get_ref().to_string()]).collect();
            let mut name = path.join(".");
            let text = self.text.get(span.span()).unwrap_or_default();
            match (span.get_ref(), value) {
                // A section, and not a value that is written as one, such as `[egress.default]`.
                (DeValue::Table(inner), Value::Table(values))
                    if !text.starts_with('{') && !is_open(&name) && !self.is_known(&name) =>
                {
                    self.collect(inner, values, &path, written);
                    continue;
                }
                // `model = "name"` is short for a section with that name alone.
                (DeValue::String(_), _) if name == "model" => name = "model.name".into(),
                _ => {}
            }
            let is_section = value.is_table() && !text.starts_with('{');
            written.push(Written {
                text: if is_section { value.to_string() } else { text.to_owned() },
                line: line_of(self.text, key.span().start),
                key: name,
                path,
                value: value.clone(),
            });
        }
    }

    fn is_known(&self, key: &str) -> bool {
        self.known.iter().any(|known| known.key == key)
    }
}

fn line_of(text: &str, position: usize) -> usize {
    text.bytes().take(position).filter(|byte| *byte == b'\n').count() + 1
}

/// A file with these settings alone.
fn table_of<'a>(settings: impl IntoIterator<Item = &'a Written>) -> Table {
    let mut whole = Table::new();
    for setting in settings {
        let Some((last, above)) = setting.path.split_last() else { continue };
        let mut table = Some(&mut whole);
        for part in above {
            let inner = table.and_then(|table| {
                table.entry(part.clone()).or_insert_with(|| Value::Table(Table::new())).as_table_mut()
            });
            table = inner;
        }
        if let Some(table) = table {
            table.insert(last.clone(), setting.value.clone());
        }
    }
    whole
}

/// What is wrong, each with the setting to blame: names first, then what values are, then what they mean together.
fn problems_of(written: &[Written], name: &str, known: &[Known], arguments: &HostArguments) -> Vec<Problem> {
    let mut problems: Vec<(usize, Problem)> = Vec::new();
    let mut good: Vec<Written> = Vec::new();
    for setting in written {
        let place = format!("{name}:{}", setting.line);
        let described = known.iter().find(|known| known.key == setting.key);
        if described.is_none() && !is_open(&setting.key) {
            let text = unknown_key(&setting.key, known);
            problems.push((setting.line, Problem { place, text, about: None }));
        } else if let Err(error) = table_of([setting]).try_into::<RawConfig>() {
            let text = format!("{}: {}", setting.key, for_people(error.message()));
            problems.push((setting.line, Problem { place, text, about: about(described) }));
        } else {
            good.push(setting.clone());
        }
    }
    // Each setting that is to blame is taken out, until what is left is right.
    while let Some(error) = error_of(&good, arguments) {
        // What is wrong without any of them is not theirs.
        if error_of(&[], arguments).as_ref() == Some(&error) {
            let place = "flags and environment".into();
            problems.push((usize::MAX, Problem { place, text: error, about: None }));
            break;
        }
        let Some(index) = blamed(&error, &good) else {
            // What was found before may well be the cause of this.
            if problems.is_empty() {
                let place = "flags, environment and file together".into();
                problems.push((usize::MAX, Problem { place, text: error, about: None }));
            }
            break;
        };
        let setting = good.remove(index);
        let text = if names(&error, &setting) { error } else { format!("{}: {error}", setting.key) };
        let described = known.iter().find(|known| known.key == setting.key);
        let place = format!("{name}:{}", setting.line);
        problems.push((setting.line, Problem { place, text, about: about(described) }));
        // The others of these need each other, and would be blamed for what was just taken out.
        let section = setting.section().to_owned();
        if TOGETHER.contains(&section.as_str()) {
            good.retain(|other| other.section() != section);
        }
    }
    problems.sort_by_key(|(line, _)| *line);
    problems.into_iter().map(|(_, problem)| problem).collect()
}

fn about(described: Option<&Known>) -> Option<String> {
    described.map(|known| known.about.clone()).filter(|about| !about.is_empty())
}

/// What is wrong with these settings together.
fn error_of(settings: &[Written], arguments: &HostArguments) -> Option<String> {
    match table_of(settings).try_into::<RawConfig>() {
        Ok(raw) => Config::from_raw(raw, arguments, &[], false).err().map(|error| format!("{error:#}")),
        Err(error) => Some(for_people(error.message())),
    }
}

/// The key that an error begins with, where it names one.
fn key_of(error: &str) -> &str {
    error.split(':').next().unwrap_or_default()
}

/// Whether an error says which setting it is about: this one, a part of it, or its section.
fn names(error: &str, setting: &Written) -> bool {
    let key = key_of(error);
    let below = |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'));
    key == setting.key || below(key, &setting.key) || below(&setting.key, key)
}

/// The setting that an error is about.
fn blamed(error: &str, settings: &[Written]) -> Option<usize> {
    let key = key_of(error);
    let exact = settings.iter().position(|setting| setting.key == key);
    let by_name = || settings.iter().position(|setting| names(error, setting));
    // One that is missing is asked for at the line of another one of its section.
    let section = key.rsplit_once('.').map(|(section, _)| section);
    let by_section = || settings.iter().position(|setting| Some(setting.section()) == section);
    let alone = || {
        let says_the_same = |setting: &Written| {
            error_of(std::slice::from_ref(setting), &HostArguments::default()).as_deref() == Some(error)
        };
        settings.iter().position(says_the_same)
    };
    exact.or_else(by_name).or_else(by_section).or_else(alone)
}

/// The names of Rust's numbers mean nothing to most people.
fn for_people(message: &str) -> String {
    let mut text = message.trim().replace('\n', ", ");
    for name in ["u16", "u32", "u64", "usize"] {
        text = text.replace(&format!("expected {name}"), "expected a whole number that is not negative");
    }
    text.replace("expected f64", "expected a number").replace("expected a sequence", "expected a list")
}

fn effective(known: &Known, written: &[Written], name: &str, arguments: &HostArguments) -> Setting {
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
    if let Some((variable, value)) = variable.and_then(|name| Some((name, config::variable(name)?))) {
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

fn as_written(setting: &Written, name: &str) -> Setting {
    Setting {
        key: setting.key.clone(),
        value: Some(setting.text.split_whitespace().collect::<Vec<_>>().join(" ")),
        origin: format!("{name}:{}", setting.line),
    }
}

fn quoted(value: &Path) -> String {
    format!("\"{}\"", value.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_may_go_anywhere_is_pointed_at() {
        let bound = "[secrets.A]\ncommand = [\"x\"]\nhosts = [\"a.example\"]\n";
        assert_eq!(report(bound).hints, Vec::<String>::new());
        let hints = report("[secrets]\nFREE = { command = [\"x\"] }\nBOUND = { command = [\"x\"], hosts = [\"b.example\"] }\n").hints;
        assert!(
            hints.len() == 1 && hints[0].contains("secrets.FREE") && hints[0].contains("hosts"),
            "{hints:?}"
        );
    }

    fn report(text: &str) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("caisson.toml");
        std::fs::write(&file, text).unwrap();
        check(&HostArguments { config: Some(file), ..HostArguments::default() }).unwrap()
    }

    #[test]
    fn a_wrong_flag_is_not_blamed_on_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("caisson.toml");
        std::fs::write(&file, "log = \"info\"\n[jobs]\nmax_running = 3\n[limits]\npids = 99999999999\n")
            .unwrap();
        let backend = Some("submarine".to_owned());
        let report =
            check(&HostArguments { config: Some(file), backend, ..HostArguments::default() }).unwrap();
        let told: Vec<(&str, &str)> =
            report.problems.iter().map(|problem| (problem.place.as_str(), problem.text.as_str())).collect();
        let [(line, pids), (outside, backend)] = told[..] else { panic!("{told:?}") };
        assert!(line.ends_with(":5") && pids == "limits.pids: 99999999999 is more than 4194304", "{told:?}");
        assert!(outside == "flags and environment" && backend.contains("submarine"), "{told:?}");
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
    fn what_is_right_only_together_is_right() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (chain, key) =
            (file("chain.pem", &made.cert.pem()), file("key.pem", &made.signing_key.serialize_pem()));
        let secret = file("secret", "s");
        let text = format!(
            "listen = [\"0.0.0.0:8000\"]\ninsecure_listen = true\n\
             [tls]\ncertificate = \"{chain}\"\nkey = \"{key}\"\n\
             [oidc]\nissuer = \"https://id.example.org\"\nclient_id = \"caisson\"\nclient_secret_file = \"{secret}\"\n\
             [oidc.roles]\nplatform = \"admin\"\n\
             [context]\nembeddings = \"http://127.0.0.1:9/v1#small\"\nembeddings_key_file = \"{secret}\"\n\
             [telemetry]\notlp_endpoint = \"http://127.0.0.1:4318\"\nservice_name = \"ours\"\n\
             [egress]\nceiling = {{ allow = [\"example.org\"] }}\n\
             [egress.default]\nallow = [\"example.org\"]\n\
             [secrets]\nGITHUB_TOKEN = {{ file = \"{secret}\" }}\n\
             [secrets.OTHER]\nfile = \"{secret}\"\n\
             [mcp.hub]\nurl = \"https://mcp.example.org/mcp\"\njobs = \"named\"\n\
             [mcp.ledger]\ncommand = [\"python3\", \"ledger.py\"]\n\
             [docker.images]\npython = \"python:3.13-slim\"\n"
        );
        let all = report(&text);
        assert!(all.problems.is_empty(), "{:?}", all.problems);
        let value = |key: &str| {
            let found = all.settings.iter().find(|setting| setting.key == key);
            found.and_then(|setting| setting.value.clone()).unwrap_or_default()
        };
        assert!(value("mcp.hub").contains("https://mcp.example.org/mcp"), "{}", value("mcp.hub"));
        assert!(value("egress.default").contains("example.org"), "{}", value("egress.default"));
        assert!(report("[egress]\ndefault = \"off\"\nceiling = \"off\"\n").problems.is_empty());
    }

    #[test]
    fn what_is_wrong_together_is_told_once_and_does_not_hide_the_rest() {
        let text = "[tls]\ncertificate = \"/nowhere/chain.pem\"\nkey = \"/nowhere/key.pem\"\n\
                    [oidc]\nclient_id = \"caisson\"\n[limits]\nmemory_mib = 1\n\
                    [mcp.hub]\njobs = \"all\"\n[secrets.T]\nfile = \"/nowhere/token\"\n";
        let problems = report(text).problems;
        let places: Vec<&str> =
            problems.iter().map(|problem| problem.place.rsplit(':').next().unwrap()).collect();
        assert_eq!(places, ["2", "5", "7", "8", "10"], "{problems:?}");
        assert!(
            problems[1].text.starts_with("oidc.issuer: is missing")
                || problems[1].text.contains("oidc.issuer")
        );
    }

    #[test]
    fn the_example_itself_is_right() {
        let report = report(EXAMPLE);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}
