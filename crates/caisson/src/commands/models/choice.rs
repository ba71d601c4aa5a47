//! `caisson models set`, `test` and `unset`: the model that the agents of a server use.

use std::io::{BufRead, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use model::{ChosenModel, ModelTest, PROVIDERS};
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::output::terminal::{self, HiddenInput};
use crate::output::{EXIT_FAILED, print, print_json, say};
use crate::signals;

/// More than any key has.
const MAX_KEY_BYTES: u64 = 64 * 1024;

/// What to do with the model of a server.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Choose the model that the agents of a server use.
    #[command(after_help = "\
The choice takes effect at once, and jobs that wait for a model start. A model in the server's configuration file or in
its CAISSON_MODEL has priority: then the choice is refused.

On a terminal, the command asks for the API key and does not show it. An empty answer keeps the key that is stored for
the same provider and address; without one, the server uses the provider's variable in its environment. The server
stores the key in a file that only its user can read.

Examples:
  caisson models set --provider anthropic --model claude-sonnet-5
  caisson models set --provider ollama --model qwen3:8b
  caisson models set --base-url http://gpu.example.org:8000/v1 --model coder --model-key-file key.txt
  pass show openai | caisson models set --model openai/gpt-5.6-terra --model-key-stdin")]
    Set(ChoiceArguments),
    /// Test a model with one tiny request.
    #[command(after_help = "\
Without options, tests the model that the agents use. With options, tests that choice and stores nothing. The server
waits at most 30 seconds for the answer.
Exit codes: 0 the model answers, 1 it does not.

Examples:
  caisson models test
  caisson models test --provider ollama --model qwen3:8b")]
    Test(ChoiceArguments),
    /// Remove the chosen model and its key from the server.
    #[command(after_help = "Examples:\n  caisson models unset\n  caisson models unset --json")]
    Unset,
}

/// A model and its key.
#[derive(Debug, Args)]
pub(crate) struct ChoiceArguments {
    /// Provider, such as anthropic, openai or ollama; omit it for another OpenAI-compatible server.
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Model of the provider or server, or provider/model.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Address of an OpenAI-compatible server, or of a gateway to the provider.
    #[arg(long, value_name = "ADDRESS")]
    base_url: Option<String>,
    /// File with the API key of the model.
    #[arg(long, value_name = "FILE", conflicts_with = "model_key_stdin")]
    model_key_file: Option<PathBuf>,
    /// Read the API key of the model from stdin.
    #[arg(long)]
    model_key_stdin: bool,
}

pub(super) async fn run(
    action: Action,
    server: &ServerArguments,
    output: OutputArguments,
) -> Result<ExitCode> {
    let client = Client::new(server)?;
    match action {
        Action::Set(arguments) => set(&client, &arguments, output).await,
        Action::Test(arguments) => test(&client, &arguments, output).await,
        Action::Unset => {
            client.delete("/v1/models/choice").await?;
            if output.json {
                print_json(&json!({ "choice": null }))?
            } else {
                print("no model is chosen\n")?
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn set(client: &Client, arguments: &ChoiceArguments, output: OutputArguments) -> Result<ExitCode> {
    let body = arguments.body().await?;
    let answer = client.json(client.request(Method::PUT, "/v1/models/choice").json(&body)).await?;
    if output.json {
        print_json(&answer)?;
    } else {
        print(&format!("agents use {}\n", name(&parsed(answer)?)))?;
        say("check it with `caisson models test`");
    }
    Ok(ExitCode::SUCCESS)
}

async fn test(client: &Client, arguments: &ChoiceArguments, output: OutputArguments) -> Result<ExitCode> {
    let answer = client.post("/v1/models/test", &arguments.body().await?).await?;
    let ModelTest { ok, code, detail, .. } = parsed(answer.clone())?;
    if output.json {
        print_json(&answer)?;
    } else {
        let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
        print(&format!("{detail}{code}\n"))?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

fn parsed<T: serde::de::DeserializeOwned>(answer: Value) -> Result<T> {
    serde_json::from_value(answer).context("unexpected answer; is it a Caisson server of this version?")
}

/// The name as in a configuration: `provider/model`, or the address with `#model`.
fn name(choice: &ChosenModel) -> String {
    let ChosenModel { provider, model, base_url, .. } = choice;
    match (provider, model, base_url) {
        (Some(provider), Some(model), Some(url)) => format!("{provider}/{model} at {url}"),
        (Some(provider), Some(model), None) => format!("{provider}/{model}"),
        (_, Some(model), Some(url)) => format!("{url}#{model}"),
        (_, None, Some(url)) => format!("the first model of {url}"),
        _ => "the chosen model".to_owned(),
    }
}

impl ChoiceArguments {
    /// The request. Empty without any option.
    async fn body(&self) -> Result<Value> {
        let mut body = Map::new();
        let named = [("provider", &self.provider), ("model", &self.model), ("base_url", &self.base_url)];
        for (field, value) in named {
            body.extend(value.as_ref().map(|value| (field.to_owned(), json!(value))));
        }
        body.extend(self.key().await?.map(|key| ("key".to_owned(), json!(key))));
        Ok(Value::Object(body))
    }

    /// The key from its file, from stdin, or from the terminal.
    async fn key(&self) -> Result<Option<String>> {
        let (text, source) = if let Some(file) = &self.model_key_file {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("reading the key in {}", file.display()))?;
            (text, file.display().to_string())
        } else if self.model_key_stdin {
            let mut text = String::new();
            let mut input = std::io::stdin().lock().take(MAX_KEY_BYTES);
            input.read_to_string(&mut text).context("reading the key from stdin")?;
            (text, "stdin".to_owned())
        } else {
            let asks = self.may_have_key() && terminal::is_interactive();
            let typed = if asks { ask_for_key().await? } else { String::new() };
            return Ok(Some(typed).filter(|key| !key.is_empty()));
        };
        let key = text.trim();
        ensure!(!key.is_empty(), "{source} is empty; it must contain an API key");
        Ok(Some(key.to_owned()))
    }

    /// Whether the choice names something that can have a key: anything but a provider on the server's machine.
    fn may_have_key(&self) -> bool {
        let of_model = self.model.as_deref().and_then(|model| Some(model.split_once('/')?.0));
        let id = self.provider.as_deref().or(of_model.filter(|_| self.base_url.is_none()));
        let is_local = PROVIDERS.iter().any(|provider| Some(provider.id) == id && provider.is_local());
        (self.provider.is_some() || self.model.is_some() || self.base_url.is_some()) && !is_local
    }
}

/// Asks for the key on the terminal, without showing it.
async fn ask_for_key() -> Result<String> {
    let hidden = HiddenInput::enter()?;
    let mut error = std::io::stderr();
    write!(error, "API key, or Enter to use the stored one or the server's environment: ")?;
    error.flush()?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // A blocking read cannot be cancelled. The thread ends with the process.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        // Sending fails only if the command was interrupted.
        let _ = sender.send(read.map(|_| line));
    });
    // A signal must not end the process while the terminal hides what is typed.
    let line = tokio::select! {
        line = receiver => Some(line),
        () = signals::termination_or_interrupt() => None,
    };
    drop(hidden);
    writeln!(error)?;
    let Some(line) = line else { bail!("interrupted") };
    Ok(line.context("reading the key")?.context("reading the key")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(provider: Option<&str>, model: Option<&str>, base_url: Option<&str>) -> ChoiceArguments {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        ChoiceArguments {
            provider: owned(provider),
            model: owned(model),
            base_url: owned(base_url),
            model_key_file: None,
            model_key_stdin: false,
        }
    }

    #[test]
    fn the_key_is_asked_for_unless_the_model_is_local() {
        let url = Some("http://gpu.example.org/v1");
        for (choice, asks) in [
            (arguments(None, None, None), false),
            (arguments(Some("ollama"), Some("qwen3"), None), false),
            (arguments(None, Some("ollama/qwen3"), None), false),
            (arguments(None, Some("openai/gpt-5"), None), true),
            (arguments(None, Some("ollama/qwen3"), url), true),
            (arguments(None, None, url), true),
        ] {
            assert_eq!(choice.may_have_key(), asks, "{choice:?}");
        }
    }

    #[tokio::test]
    async fn the_request_has_the_key_of_the_file_and_no_empty_fields() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let key_file = Some(file.path().to_owned());
        let choice = ChoiceArguments { model_key_file: key_file, ..arguments(None, Some("openai/a"), None) };
        assert!(choice.body().await.unwrap_err().to_string().contains("is empty"));
        std::fs::write(file.path(), "sk-in-a-file\n").unwrap();
        assert_eq!(choice.body().await.unwrap(), json!({"model": "openai/a", "key": "sk-in-a-file"}));
    }

    #[test]
    fn a_chosen_model_is_named_as_in_the_configuration() {
        let choice = |provider: Option<&str>, model: Option<&str>, base_url: Option<&str>| {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            let (provider, model, base_url) = (owned(provider), owned(model), owned(base_url));
            name(&ChosenModel { provider, model, base_url, has_key: false })
        };
        assert_eq!(choice(Some("openai"), Some("a"), None), "openai/a");
        assert_eq!(choice(None, Some("a"), Some("http://host/v1")), "http://host/v1#a");
        assert_eq!(choice(None, None, Some("http://host/v1")), "the first model of http://host/v1");
    }
}
