//! Tests of tool selection for windows of all sizes.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use model::{ModelError, ModelRequest, ModelStream};

use super::*;
use crate::host::Capability;
use crate::tools;

const ALWAYS_OFFERED: [&str; 3] = ["shell", "finish", "history_read"];
const BASIC_TOOLS: [&str; 6] = ["shell", "finish", "history_read", "read_file", "write_file", "edit_file"];
const WEAK_TOOLS: [&str; 9] = [
    "shell",
    "read_file",
    "write_file",
    "edit_file",
    "finish",
    "history_read",
    "list_files",
    "search_files",
    "python",
];

/// A model with given limits; it is never asked.
struct LimitsModel {
    name: ModelName,
    limits: ModelLimits,
}

#[async_trait]
impl Model for LimitsModel {
    fn name(&self) -> &ModelName {
        &self.name
    }

    fn limits(&self) -> ModelLimits {
        self.limits
    }

    async fn stream(&self, _: Arc<ModelRequest>) -> Result<ModelStream, ModelError> {
        std::future::pending().await
    }
}

fn limits(native_tools: bool, context_tokens: u32) -> ModelLimits {
    ModelLimits { context_tokens, output_tokens: 2_000, vision: false, native_tools, reasoning: false }
}

fn toolbox(native_tools: bool, context_tokens: u32, approve_plan: bool) -> Toolbox {
    let mut toolbox = Toolbox::new(tools::standard(), &BTreeSet::from([Capability::Python]));
    keep_weak_model_tools(&limits(native_tools, context_tokens), approve_plan, &mut toolbox);
    toolbox
}

/// What a model of this size is offered if its provider counts `thousandths` tokens for 1,000 of ours.
fn fitted(
    native_tools: bool,
    context_tokens: u32,
    thousandths: u32,
    settings: &AgentSettings,
) -> (FixedPart, PromptRoom) {
    let model =
        LimitsModel { name: ModelName::new("test/sized"), limits: limits(native_tools, context_tokens) };
    let room = PromptRoom { factor: Factor::from_thousandths(thousandths), ..PromptRoom::for_model(&model) };
    let egress = "only these hosts: crates.io, static.crates.io, index.crates.io";
    let toolbox = toolbox(native_tools, context_tokens, settings.approve_plan);
    let external = ExternalTools::default();
    let inputs = PromptInputs {
        model: &model,
        settings,
        egress,
        toolbox: &toolbox,
        external: &external,
        offers_history: true,
    };
    (fit(&inputs, room), room)
}

#[test]
fn weak_model_gets_few_tools() {
    let names = toolbox(false, 16_384, false).names();
    let wanted: BTreeSet<&str> = WEAK_TOOLS.into();
    assert_eq!(names.iter().map(String::as_str).collect::<BTreeSet<_>>(), wanted);
    assert!(toolbox(false, 16_384, true).find("plan").is_some(), "a person waits for it");
    for (native, window) in [(true, 16_384), (false, 131_072)] {
        assert!(toolbox(native, window, false).find("history_search").is_some());
    }
}

#[test]
fn tools_that_are_offered_together_exist() {
    let all = Toolbox::new(tools::standard(), &BTreeSet::from([Capability::Desktop]));
    assert!(TOGETHER.iter().flat_map(|group| group.iter()).all(|name| all.find(name).is_some()));
}

#[test]
fn windows_from_four_thousand_tokens_offer_the_essential_tools() {
    let settings = AgentSettings::default();
    for native in [true, false] {
        for window in [4_096, 6_000, 8_192, 16_384, 32_768, 200_000] {
            let (fitted, room) = fitted(native, window, 1_000, &settings);
            let names = fitted.toolbox.names();
            for name in BASIC_TOOLS {
                assert!(names.iter().any(|known| known == name), "{name} at {window}: {names:?}");
            }
            assert!(room.holds(&fitted.window), "{window}");
            Settings::from(&fitted.window).check().unwrap();
        }
    }
    let all = toolbox(true, 200_000, false).names();
    assert_eq!(
        fitted(true, 200_000, 1_000, &settings).0.toolbox.names(),
        all,
        "a large window has all, in order"
    );
}

#[test]
fn higher_token_factor_keeps_only_required_tools() {
    let settings = AgentSettings { approve_plan: true, ..AgentSettings::default() };
    for thousandths in [1_000, 1_300, 1_630, 2_170, 3_000] {
        let (fitted, room) = fitted(true, 8_192, thousandths, &settings);
        let names = fitted.toolbox.names();
        for name in ALWAYS_OFFERED.into_iter().chain(["plan"]) {
            assert!(names.iter().any(|known| known == name), "{name} at {thousandths}: {names:?}");
        }
        let fixed = fitted.window.system_tokens + fitted.window.tools_tokens;
        // The rest is enough for the task and the history.
        assert!(fixed * 3 <= room.policy().budget, "{fixed} of {} at {thousandths}", room.policy().budget);
    }
}

#[test]
fn prompt_mentions_only_offered_tools() {
    let settings = AgentSettings::default();
    let own = tools::standard();
    for native in [true, false] {
        for window in [4_096, 8_192, 16_384, 200_000] {
            let (fitted, _) = fitted(native, window, 1_000, &settings);
            for tool in &own {
                let word = format!("`{}`", tool.name());
                let is_offered = fitted.toolbox.find(tool.name()).is_some();
                let is_mentioned = fitted.window.system.contains(&word);
                assert!(is_offered || !is_mentioned, "{word} at {window}: {}", fitted.window.system);
            }
            assert!(fitted.window.system.replace('\n', " ").contains("call `finish`"));
            assert!(fitted.window.system.contains("`history_read`"), "stubs speak of recalling");
        }
    }
    let large = fitted(true, 200_000, 1_000, &settings).0.window.system;
    for word in ["`plan`", "`process`", "`notes`", "`python`"] {
        assert!(large.contains(word), "{word}");
    }
}

#[test]
fn initial_token_factor_depends_on_the_provider() {
    let factor = |name: &str| start_factor(&ModelName::new(name)).thousandths();
    assert_eq!(factor("anthropic/claude-sonnet-4-5"), 1_200);
    assert_eq!(factor("gemini/gemini-2.5-pro"), 1_100);
    assert_eq!(factor("openai/gpt-5"), 1_000);
    assert_eq!(factor("http://127.0.0.1:8080/v1"), 1_000);
}

#[test]
fn tools_that_need_each_other_are_offered_together() {
    let abilities = BTreeSet::from([Capability::Python, Capability::Desktop, Capability::Browser]);
    let toolbox = Toolbox::new(tools::standard(), &abilities);
    let (settings, external) = (AgentSettings::default(), ExternalTools::default());
    let (mut offered, mut has_browser_alone) = (BTreeSet::new(), false);
    for context_tokens in (4_000..60_000).step_by(500) {
        let model = LimitsModel { name: ModelName::new("test/sized"), limits: limits(true, context_tokens) };
        let inputs = PromptInputs {
            model: &model,
            settings: &settings,
            egress: "off",
            toolbox: &toolbox,
            external: &external,
            offers_history: true,
        };
        let fitted = fit(&inputs, PromptRoom::for_model(&model)).toolbox;
        let has = |name: &str| fitted.find(name).is_some();
        assert_eq!(has("screenshot"), has("gui"), "{context_tokens}: {:?}", fitted.names());
        offered.insert(has("gui"));
        has_browser_alone |= has("browser") && !has("gui");
    }
    assert!(has_browser_alone, "it is useful without them");
    assert_eq!(offered.len(), 2, "with and without them");
}

#[test]
fn history_tools_are_counted_before_they_are_offered() {
    let (settings, external) = (AgentSettings::default(), ExternalTools::default());
    for context_tokens in [4_096, 16_384, 200_000] {
        let model = LimitsModel { name: ModelName::new("test/sized"), limits: limits(true, context_tokens) };
        let toolbox = toolbox(true, context_tokens, false);
        let inputs = |offers_history| PromptInputs {
            model: &model,
            settings: &settings,
            egress: "off",
            toolbox: &toolbox,
            external: &external,
            offers_history,
        };
        let held = fit(&inputs(false), PromptRoom::for_model(&model)).window;
        assert!(!has_history_tools(&held) && !held.system.contains("history_"), "{}", held.system);
        assert!(held.held_tools.contains(&"history_read".to_owned()), "{:?}", held.held_tools);
        let kept = keep(&inputs(false), &held).unwrap().window;
        assert_eq!(kept, held, "a restart changes nothing");
        let offered = keep(&inputs(true), &held).unwrap().window;
        assert!(has_history_tools(&offered) && offered.system.contains("`history_read`"));
        assert_eq!(offered, fit(&inputs(true), PromptRoom::for_model(&model)).window);
        assert_eq!(keep(&inputs(true), &offered).unwrap().window, offered);
        let tokens = |window: &Window| (window.system_tokens, window.tools_tokens);
        assert_eq!(tokens(&offered), tokens(&held), "{context_tokens}");
    }
}

#[test]
fn selection_stays_when_the_provider_counts_a_third_more() {
    for window in [8_192, 16_384, 32_768, 65_536] {
        let (chosen, room) = fitted(true, window, 1_000, &AgentSettings::default());
        let learned = PromptRoom { factor: Factor::from_thousandths(1_350), ..room };
        assert!(learned.tolerates(&chosen.window), "{window}");
    }
}

#[test]
fn system_prompts_are_as_reviewed() {
    let settings = AgentSettings {
        approve_plan: true,
        acceptance: vec!["make test".into(), "cargo clippy".into()],
        ..AgentSettings::default()
    };
    insta::assert_snapshot!("system_large", fitted(true, 200_000, 1_000, &settings).0.window.system);
    insta::assert_snapshot!(
        "system_4k",
        fitted(true, 4_096, 1_000, &AgentSettings::default()).0.window.system
    );
    insta::assert_snapshot!(
        "system_weak",
        fitted(false, 16_384, 1_000, &AgentSettings::default()).0.window.system
    );
}

#[test]
fn small_models_see_no_example_that_they_could_copy() {
    let offered = fitted(false, 16_384, 1_000, &AgentSettings::default()).0;
    let text = serde_json::to_string(&offered.window.tools).unwrap() + &offered.window.system;
    let is_event = |word: &str| {
        let digits = word.strip_prefix('e').unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let words = || text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let copied: Vec<&str> = words().filter(|word| is_event(word) || word.starts_with("turn-")).collect();
    assert!(copied.is_empty() && !text.contains("such as `"), "{copied:?} in {text}");
}
