//! Error output of commands: a line of text, or JSON if requested, and an exit code.

use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::json;

use crate::commands;

/// The exit code for own failures of commands that otherwise pass on a program's exit code, as in Docker.
pub(crate) const EXIT_OWN_TROUBLE: u8 = 125;
/// The commands that pass on a program's exit code.
const PASSING_ON: [&str; 3] = ["exec", "shell", "attach"];
/// The code of errors without a specific one.
const NO_BETTER_CODE: &str = "failed";
/// The code of command line errors.
const USAGE: &str = "usage";

/// An error with a code that programs can match.
#[derive(Debug)]
pub(crate) struct Coded {
    code: String,
    message: String,
}

impl Coded {
    pub(crate) fn error(code: impl Into<String>, message: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { code: code.into(), message: message.into() })
    }
}

/// Whether an error has one of these codes.
pub(crate) fn has_code(error: &anyhow::Error, codes: &[&str]) -> bool {
    error.downcast_ref::<Coded>().is_some_and(|coded| codes.contains(&coded.code.as_str()))
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

/// How a command reports an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    is_json: bool,
    exit_code: u8,
}

impl Manner {
    /// Chooses the manner from the parsed arguments.
    pub(crate) fn of(matches: &ArgMatches) -> Self {
        Self { is_json: wants_json(matches), exit_code: exit_code(matches.subcommand_name()) }
    }

    /// Chooses the manner from arguments that failed to parse, as far as possible.
    fn of_words(words: &[OsString]) -> Self {
        let mut words =
            words.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != "--");
        let command = words.clone().find(|word| !word.starts_with('-'));
        Self { is_json: words.any(|word| word == "--json"), exit_code: exit_code(command) }
    }

    /// Prints the error.
    pub(crate) fn tell(self, error: &anyhow::Error) -> ExitCode {
        if self.is_json {
            let coded = error.chain().find_map(|cause| cause.downcast_ref::<Coded>());
            let code = coded.map_or(NO_BETTER_CODE, |coded| coded.code.as_str());
            commands::say(&json!({ "code": code, "message": format!("{error:#}") }).to_string());
        } else {
            commands::say(&format!("caisson: {error:#}"));
        }
        ExitCode::from(self.exit_code)
    }
}

/// Prints a parse error, or the requested help or version.
pub(crate) fn mistyped(error: &clap::Error, words: &[OsString]) -> ExitCode {
    let manner = Manner::of_words(words);
    if !error.use_stderr() || !manner.is_json {
        // A closed terminal is not an error.
        let _ = error.print();
        let code = if error.use_stderr() { manner.exit_code } else { 0 };
        return ExitCode::from(code);
    }
    let text = error.render().to_string();
    let message = text.strip_prefix("error: ").unwrap_or(&text).trim();
    manner.tell(&Coded::error(USAGE, message))
}

fn wants_json(matches: &ArgMatches) -> bool {
    let is_set = matches.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or(false);
    is_set || matches.subcommand().is_some_and(|(_, below)| wants_json(below))
}

fn exit_code(command: Option<&str>) -> u8 {
    match command {
        Some(name) if PASSING_ON.contains(&name) => EXIT_OWN_TROUBLE,
        _ => commands::EXIT_TROUBLE,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn manner(line: &str) -> Manner {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        match Cli::command().try_get_matches_from(&words) {
            Ok(matches) => Manner::of(&matches),
            Err(_) => Manner::of_words(&words),
        }
    }

    #[test]
    fn json_is_asked_for_wherever_the_word_stands_and_not_by_what_runs_inside() {
        for line in [
            "caisson jobs --json",
            "caisson sandboxes --json list",
            "caisson image list --json",
            "caisson jobs --nonsense --json",
        ] {
            assert!(manner(line).is_json, "{line}");
        }
        for line in ["caisson jobs", "caisson exec 1c2d ls --json", "caisson exec --nonsense -- ls --json"] {
            assert!(!manner(line).is_json, "{line}");
        }
    }

    #[test]
    fn what_passes_exit_codes_on_has_one_of_its_own() {
        let codes = ["caisson exec 1c2d true", "caisson attach", "caisson shell --nonsense", "caisson jobs"]
            .map(|line| manner(line).exit_code);
        assert_eq!(codes, [125, 125, 125, 2]);
    }
}
