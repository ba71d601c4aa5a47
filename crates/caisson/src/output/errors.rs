//! Error output of commands: a line of text, or JSON if requested, and an exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::json;

use super::exit_code::{EXIT_COMMAND_ERROR, EXIT_ERROR};
use super::text::say;
use crate::coded_error::CodedError;

/// The commands that pass on a program's exit code.
const EXIT_CODE_FORWARDING: [&str; 3] = ["exec", "shell", "attach"];
/// The code of errors without a specific one.
const GENERIC_CODE: &str = "failed";
/// The code of command line errors.
const USAGE: &str = "usage";

/// How a command reports an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ErrorFormat {
    is_json: bool,
    exit_code: u8,
}

impl ErrorFormat {
    /// Chooses the format from the parsed arguments.
    pub(crate) fn of(matches: &ArgMatches) -> Self {
        Self { is_json: wants_json(matches), exit_code: exit_code(matches.subcommand_name()) }
    }

    /// Chooses the format from arguments that failed to parse, as far as possible.
    fn of_words(words: &[OsString]) -> Self {
        let mut words =
            words.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != "--");
        let command = words.clone().find(|word| !word.starts_with('-'));
        Self { is_json: words.any(|word| word == "--json"), exit_code: exit_code(command) }
    }

    /// Prints the error.
    pub(crate) fn print(self, error: &anyhow::Error) -> ExitCode {
        if self.is_json {
            let coded = error.chain().find_map(|cause| cause.downcast_ref::<CodedError>());
            let code = coded.map_or(GENERIC_CODE, |coded| coded.code.as_str());
            say(&json!({ "code": code, "message": format!("{error:#}") }).to_string());
        } else {
            say(&format!("caisson: {error:#}"));
        }
        ExitCode::from(self.exit_code)
    }
}

/// Prints a parse error, or the requested help or version.
pub(crate) fn report_usage_error(error: &clap::Error, words: &[OsString]) -> ExitCode {
    let error_format = ErrorFormat::of_words(words);
    let text = error.render().to_string();
    let plain = plain_usage_error(&text);
    if !error.use_stderr() || (!error_format.is_json && plain == text) {
        // A closed terminal is not an error.
        let _ = error.print();
        let code = if error.use_stderr() { error_format.exit_code } else { 0 };
        return ExitCode::from(code);
    }
    if !error_format.is_json {
        say(plain.trim_end());
        return ExitCode::from(error_format.exit_code);
    }
    let message = plain.strip_prefix("error: ").unwrap_or(&plain).trim();
    error_format.print(&CodedError::error(USAGE, message))
}

/// A usage error without the words of Rust's parsers, and without Rust's notation of ranges.
fn plain_usage_error(text: &str) -> String {
    let text = job::plain_parser_error(text);
    let Some((before, rest)) = text.split_once(" is not in ") else { return text };
    let (range, after) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
    match range.split_once("..=") {
        Some((least, most)) if !least.is_empty() => {
            format!("{before} is not between {least} and {most}{after}")
        }
        _ => text,
    }
}

fn wants_json(matches: &ArgMatches) -> bool {
    let is_set = matches.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or(false);
    is_set || matches.subcommand().is_some_and(|(_, below)| wants_json(below))
}

fn exit_code(command: Option<&str>) -> u8 {
    match command {
        Some(name) if EXIT_CODE_FORWARDING.contains(&name) => EXIT_COMMAND_ERROR,
        _ => EXIT_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn error_format(line: &str) -> ErrorFormat {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        match Cli::command().try_get_matches_from(&words) {
            Ok(matches) => ErrorFormat::of(&matches),
            Err(_) => ErrorFormat::of_words(&words),
        }
    }

    #[test]
    fn json_flag_is_found_anywhere_but_not_after_double_dash() {
        for line in [
            "caisson jobs --json",
            "caisson sandboxes --json list",
            "caisson image list --json",
            "caisson jobs --nonsense --json",
        ] {
            assert!(error_format(line).is_json, "{line}");
        }
        for line in ["caisson jobs", "caisson exec 1c2d ls --json", "caisson exec --nonsense -- ls --json"] {
            assert!(!error_format(line).is_json, "{line}");
        }
    }

    #[test]
    fn errors_of_arguments_use_plain_words() {
        for (line, plain) in [
            ("jobs --limit many", "must be a whole number"),
            ("jobs --limit 0", "0 is not between 1 and "),
            ("jobs --limit -1", ""),
            ("serve --listen localhost", "must be an address with a port, such as 127.0.0.1:8000"),
            ("sandboxes extend 1c2d --ttl soon", "must be a whole number"),
            ("sandboxes create --ttl 1.5", "must be a whole number"),
            ("resume 1c2d --tokens 1e6", "must be a whole number"),
            ("resume 1c2d --money much", "is not a number"),
            ("keys add ada --role admin --max-running 99999999999", ""),
            ("run --steps a.json --memory much", "expected a size"),
            ("extend 1c2d soon", "expected a duration"),
        ] {
            let words = std::iter::once("caisson").chain(line.split(' '));
            let error = Cli::command().try_get_matches_from(words).unwrap_err();
            let told = plain_usage_error(&error.render().to_string());
            let leaked = job::SERDE_WORDING.iter().find(|words| told.contains(*words));
            assert!(leaked.is_none() && told.contains(plain) && !told.contains("..="), "{line}: {told}");
        }
    }

    #[test]
    fn exit_code_forwarding_commands_use_125_for_own_errors() {
        let codes = ["caisson exec 1c2d true", "caisson attach", "caisson shell --nonsense", "caisson jobs"]
            .map(|line| error_format(line).exit_code);
        assert_eq!(codes, [125, 125, 125, 2]);
    }
}
