//! `caisson exec`

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::arguments::{OutputArguments, ServerArguments, parse_number, parse_pair};
use crate::client::Client;
use crate::client::exec::{self, ExecRequest, Input};
use crate::client::ids::{self, Target};
use crate::config::client_environment;
use crate::output::EXIT_COMMAND_ERROR;
use crate::output::print_json;
use crate::output::terminal;

/// `caisson exec`
#[derive(Debug, Args)]
#[command(after_help = "\
A single word after the id is a command line for the shell in the sandbox. Several words are a program and its arguments.
The exit code is that of the command, or 125 if it could not be run or timed out. Ctrl-C interrupts the command; a second
Ctrl-C kills it.
Without --terminal the command runs as in a shell pipeline: it blocks while its output is not read, and ends when its
reader ends.

Examples:
  caisson exec 1c2d4e6f 'ls -la | head'
  caisson exec 1c2d4e6f -- python3 -c 'print(1)'
  caisson exec -i 1c2d4e6f 'cat > notes.txt' < notes.txt
  caisson exec -it 1c2d4e6f top")]
pub(crate) struct ExecArguments {
    /// Pass standard input to the command.
    #[arg(short, long)]
    interactive: bool,
    /// Allocate a terminal.
    #[arg(short, long, conflicts_with = "json")]
    terminal: bool,
    /// Working directory [default: /workspace].
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<String>,
    /// Environment variable for the command; repeatable.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    environment: Vec<(String, String)>,
    /// Kill the command after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_number)]
    timeout: Option<f64>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
    /// Id or name of the job or bare sandbox.
    id: String,
    /// Command to run.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) async fn run(arguments: ExecArguments) -> Result<ExitCode> {
    let input = match (arguments.terminal, arguments.interactive) {
        (true, _) if !terminal::is_interactive() => {
            bail!("--terminal needs standard input and output to be a terminal; omit it in scripts")
        }
        (true, _) => Input::Terminal,
        (false, true) => Input::Pipe,
        (false, false) => Input::None,
    };
    let client = Client::new(&arguments.server)?;
    let target = ids::target(&client, &arguments.id).await?;
    let mut request = request(&arguments, input);
    if arguments.output.json {
        if input == Input::Pipe {
            let text = std::io::read_to_string(std::io::stdin());
            request["stdin"] =
                json!(text.context("reading standard input, which must be UTF-8 text with --json")?);
        }
        return run_at_once(&client, &target, &request).await;
    }
    exec::run(&client, &target, ExecRequest { body: request, input }).await
}

fn request(arguments: &ExecArguments, input: Input) -> Value {
    let mut environment: Map<String, Value> =
        arguments.environment.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    if input == Input::Terminal {
        environment.entry("TERM").or_insert_with(|| json!(client_environment::terminal_kind()));
    }
    let mut request = match arguments.command.as_slice() {
        [line] => json!({"command": line}),
        words => json!({"argv": words}),
    };
    request["environment"] = Value::Object(environment);
    if let Some(cwd) = &arguments.cwd {
        request["cwd"] = json!(cwd);
    }
    if let Some(seconds) = arguments.timeout {
        request["timeout_s"] = json!(seconds);
    }
    request
}

/// One request, answered by one document with all of the output.
async fn run_at_once(client: &Client, target: &Target, request: &Value) -> Result<ExitCode> {
    let reply = client.post(&target.path("exec"), request).await?;
    print_json(&reply)?;
    let code = reply["exit_code"].as_i64().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(EXIT_COMMAND_ERROR)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(words: &[&str]) -> ExecArguments {
        let all = ["caisson", "exec"].iter().chain(words);
        match Cli::try_parse_from(all).unwrap().command {
            Command::Exec(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_word_is_a_command_line_and_several_are_a_program() {
        let line = parse(&["6f", "ls | head"]);
        assert_eq!(request(&line, Input::None), json!({"command": "ls | head", "environment": {}}));
        let program = parse(&["-e", "A=b", "6f", "--", "ls", "-la"]);
        assert_eq!(request(&program, Input::None), json!({"argv": ["ls", "-la"], "environment": {"A": "b"}}));
        assert_eq!(parse(&["6f", "ls", "-la", "--json"]).command, ["ls", "-la", "--json"]);
    }
}
