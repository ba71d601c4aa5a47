//! `caisson models`

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use model::{Offer, Price, Source, Survey, UsedModel};

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
With --url or CAISSON_URL it is the server there that is asked which model its agents use. Otherwise this
asks the configured model, servers on this machine (Ollama, llama.cpp, LM Studio, vLLM), and
every provider whose key is in the environment (ANTHROPIC_API_KEY, OPENAI_API_KEY, ...).
Exit code: 0 agents have a model, 1 they have none or it cannot be reached.

Examples:
  caisson models
  caisson models claude
  caisson models --url https://caisson.example.org
  CAISSON_MODEL=http://127.0.0.1:8081/v1 caisson models --json | jq .model")]
pub(crate) struct ModelsArguments {
    /// Lists only models whose name holds this.
    #[arg(value_name = "WORD")]
    word: Option<String>,
    #[command(flatten)]
    host: HostArguments,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Asks all servers and prints the models they have.
pub(crate) async fn run(arguments: ModelsArguments) -> Result<ExitCode> {
    let mut survey: Survey = if arguments.server.url.is_some() || client_environment::named_url().is_some() {
        let answer = Client::new(&arguments.server)?.get("/v1/models").await?;
        serde_json::from_value(answer)
            .context("the server says something else than which models there are")?
    } else {
        model::survey(&Config::load(&arguments.host, &[], false)?.model).await?
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

fn describe(survey: &Survey) -> String {
    let colours = Colours::of_output();
    let sources = &survey.sources;
    let mut text = match &survey.model {
        Some(UsedModel { name, limits }) => {
            let calls = if limits.native_tools { "its own tool calls" } else { "tool calls by prompt" };
            let context = tokens(Some(limits.context_tokens));
            let (colour, words) =
                if survey.is_usable() { ("32", "agents use") } else { ("33", "agents should use") };
            format!("{} {name} ({context} tokens, {calls})\n", colours.paint(colour, words))
        }
        None => {
            let words = survey.trouble.as_ref().map_or("", |trouble| trouble.detail.as_str());
            let words = words.strip_prefix("no model: ").unwrap_or(words);
            format!("{}: {words}\n", colours.paint("33", "agents have no model"))
        }
    };
    let mut table = Table::new(&["MODEL", "CONTEXT", "TOOLS", "PICTURES", "PRICE", "FROM"]);
    let mut has_rows = false;
    for source in sources {
        for offer in &source.models {
            has_rows = true;
            table.add(row(offer, source));
        }
    }
    if has_rows {
        text += &format!("\n{}\nPrices are US dollars for a million tokens, in / out.\n", table.show());
    }
    for source in sources {
        if let Some(trouble) = &source.trouble {
            text += &format!("\n{} {}: {trouble}", colours.paint("31", "cannot list"), source.kind);
        }
    }
    text.trim_end().to_owned() + "\n"
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
    use model::{ModelError, ModelName, Trouble};

    use super::*;

    fn survey() -> Survey {
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
        Survey { model: None, trouble: Some(Trouble::from(&error)), sources }
    }

    #[test]
    fn text_output_shows_used_and_available_models_and_errors() {
        let text = describe(&survey());
        assert!(text.starts_with("agents have no model: none is configured"), "{text}");
        assert!(text.contains("anthropic/a  1M       prompt  yes       2 / 10  anthropic\n"), "{text}");
        assert!(text.contains("anthropic/b  1M       prompt  yes       ?       anthropic\n"), "{text}");
        assert!(text.ends_with("cannot list gemini: cannot reach it\n"), "{text}");
    }

    #[test]
    fn json_output_has_the_same_content() {
        let document = serde_json::to_value(survey()).unwrap();
        assert_eq!(document["trouble"]["code"], "no_model");
        assert_eq!(document["sources"][0]["models"][0]["price"]["output"], 10.0);
        assert!(document["sources"][1].get("trouble_code").is_none());
        // The client parses the document that the server sends.
        assert_eq!(serde_json::from_value::<Survey>(document).unwrap(), survey());
    }
}
