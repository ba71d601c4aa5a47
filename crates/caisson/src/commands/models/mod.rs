//! `caisson models`

mod choice;

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use model::{ModelOrigin, ModelStatus, Offer, Price, Source, UsedModel};

use crate::arguments::{HostArguments, OutputArguments, ServerArguments};
use crate::client::Client;
use crate::config::Config;
use crate::config::client_environment;
use crate::output::table::{Cell, Table};
use crate::output::terminal::Colours;
use crate::output::{EXIT_FAILED, print, print_json};

/// `caisson models`
#[derive(Debug, Args)]
#[command(after_help = "\
With --url or CAISSON_URL, shows the models of that server. Otherwise queries the configured model, the model servers on
this machine (Ollama, llama.cpp, LM Studio, vLLM) and every provider whose key is in the environment (ANTHROPIC_API_KEY,
OPENAI_API_KEY, ...).
`set`, `test` and `unset` work on the server of --url, CAISSON_URL or http://127.0.0.1:8000, and require the role admin.
Exit codes: 0 agents have a model, 1 they have none or it cannot be reached.

Examples:
  caisson models
  caisson models claude
  caisson models --url https://caisson.example.org
  caisson models set --provider anthropic --model claude-sonnet-5
  CAISSON_MODEL=http://127.0.0.1:8081/v1 caisson models --json | jq .model")]
pub(crate) struct ModelsArguments {
    #[command(subcommand)]
    action: Option<choice::Action>,
    /// Only models whose name contains this text.
    #[arg(value_name = "WORD")]
    word: Option<String>,
    #[command(flatten)]
    host: HostArguments,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Carries out an action on a server's model; without one, asks all servers and prints the models they have.
pub(crate) async fn run(arguments: ModelsArguments) -> Result<ExitCode> {
    if let Some(action) = arguments.action {
        return choice::run(action, &arguments.server, arguments.output).await;
    }
    let mut survey: ModelStatus =
        if arguments.server.url.is_some() || client_environment::named_url().is_some() {
            let answer = Client::new(&arguments.server)?.get("/v1/models").await?;
            serde_json::from_value(answer)
                .map_err(|_| anyhow!("unexpected answer; is it a Caisson server of this version?"))?
        } else {
            model::check_models(&Config::load(&arguments.host, &[], false)?.model).await?
        };
    if let Some(word) = &arguments.word {
        for source in &mut survey.sources {
            source.models.retain(|offer| offer.name.as_str().contains(word.as_str()));
        }
    }
    if arguments.output.json {
        print_json(&serde_json::to_value(&survey)?)?;
    } else {
        print(&describe(&survey))?;
    }
    Ok(if survey.is_usable() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

fn describe(survey: &ModelStatus) -> String {
    let colours = Colours::of_output();
    let sources = &survey.sources;
    let mut text = match &survey.model {
        Some(UsedModel { name, limits }) => {
            let calls = if limits.native_tools { "native tool calls" } else { "tool calls in the prompt" };
            let context = tokens(Some(limits.context_tokens));
            let (colour, words) =
                if survey.is_usable() { ("32", "agents use") } else { ("33", "agents should use") };
            let origin = survey.origin.map_or("", origin_text);
            format!("{} {name} ({context} tokens, {calls}){origin}\n", colours.paint(colour, words))
        }
        None => {
            let words = survey.trouble.as_ref().map_or("", |trouble| trouble.detail.as_str());
            let words = words.strip_prefix("no model: ").unwrap_or(words);
            format!("{}: {words}\n", colours.paint("33", "agents have no model"))
        }
    };
    let mut table = Table::new(&["MODEL", "CONTEXT", "TOOLS", "IMAGES", "PRICE", "FROM"]);
    let mut has_rows = false;
    for source in sources {
        for offer in &source.models {
            has_rows = true;
            table.add(row(offer, source));
        }
    }
    if has_rows {
        text +=
            &format!("\n{}\nPrices are in US dollars per million tokens, input / output.\n", table.show());
    }
    for source in sources {
        if let Some(trouble) = &source.trouble {
            text += &format!("\n{} {}: {trouble}", colours.paint("31", "cannot list models of"), source.kind);
        }
    }
    text.trim_end().to_owned() + "\n"
}

fn origin_text(origin: ModelOrigin) -> &'static str {
    match origin {
        ModelOrigin::File => ", set in the configuration file",
        ModelOrigin::Environment => ", set by CAISSON_MODEL",
        ModelOrigin::Chosen => ", chosen by an admin",
    }
}

fn row(offer: &Offer, source: &Source) -> Vec<Cell> {
    let word = |value: Option<bool>, no: &'static str| match value {
        Some(true) => "yes",
        Some(false) => no,
        None => "?",
    };
    vec![
        offer.name.as_str().into(),
        tokens(offer.context_tokens).into(),
        word(offer.tools, "prompt").into(),
        word(offer.vision, "no").into(),
        price(offer.price).into(),
        source.kind.as_str().into(),
    ]
}

fn tokens(count: Option<u32>) -> String {
    match count {
        None => "?".into(),
        Some(count) if count >= 1_000_000 => format!("{}M", count / 1_000_000),
        Some(count) if count >= 1000 => format!("{}k", count / 1000),
        Some(count) => count.to_string(),
    }
}

fn price(price: Option<Price>) -> String {
    match price {
        None => "?".into(),
        Some(price) if price.input == 0.0 && price.output == 0.0 => "free".into(),
        Some(price) => format!("{} / {}", price.input, price.output),
    }
}

#[cfg(test)]
mod tests {
    use model::{ModelError, ModelLimits, ModelName, ProviderInfo, Trouble};

    use super::*;

    fn survey() -> ModelStatus {
        let price = Price { input: 2.0, cached_input: None, cache_write: None, output: 10.0, above: None };
        let offer = |name: &str, price| Offer {
            name: ModelName::new(name),
            context_tokens: Some(1_000_000),
            vision: Some(true),
            tools: Some(false),
            price,
        };
        let models = vec![offer("anthropic/a", Some(price)), offer("anthropic/b", None)];
        let source = |kind: &str, trouble: Option<&str>, models| Source {
            kind: kind.into(),
            address: "https://example.org".into(),
            trouble: trouble.map(str::to_owned),
            trouble_code: None,
            models,
        };
        let sources =
            vec![source("anthropic", None, models), source("gemini", Some("cannot reach it"), Vec::new())];
        let error = ModelError::NoModel { advice: "name one".into() };
        ModelStatus {
            model: None,
            origin: None,
            trouble: Some(Trouble::from(&error)),
            sources,
            choice: None,
            providers: ProviderInfo::all(),
        }
    }

    #[test]
    fn text_output_says_what_sets_the_model() {
        let limits = ModelLimits {
            context_tokens: 200_000,
            output_tokens: 4096,
            vision: true,
            native_tools: true,
            reasoning: true,
        };
        let model = Some(UsedModel { name: ModelName::new("anthropic/a"), limits });
        let origin = Some(ModelOrigin::Chosen);
        let text = describe(&ModelStatus { model, origin, trouble: None, ..survey() });
        let line = "agents use anthropic/a (200k tokens, native tool calls), chosen by an admin\n";
        assert!(text.starts_with(line), "{text}");
    }

    #[test]
    fn text_output_shows_used_and_available_models_and_errors() {
        let text = describe(&survey());
        assert!(text.starts_with("agents have no model: none is configured"), "{text}");
        assert!(text.contains("anthropic/a  1M       prompt  yes     2 / 10  anthropic\n"), "{text}");
        assert!(text.contains("anthropic/b  1M       prompt  yes     ?       anthropic\n"), "{text}");
        assert!(text.ends_with("cannot list models of gemini: cannot reach it\n"), "{text}");
    }

    #[test]
    fn json_output_has_the_same_content() {
        let document = serde_json::to_value(survey()).unwrap();
        assert_eq!(document["trouble"]["code"], "no_model");
        assert_eq!(document["sources"][0]["models"][0]["price"]["output"], 10.0);
        assert!(document["sources"][1].get("trouble_code").is_none());
        // The client parses the document that the server sends.
        assert_eq!(serde_json::from_value::<ModelStatus>(document).unwrap(), survey());
    }
}
