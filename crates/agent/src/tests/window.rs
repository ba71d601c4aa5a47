//! The window of a running job: external tools that appear and disappear, providers that count more tokens than we
//! do, summaries that a model fails to write.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::StreamExt;
use model::{
    Answer, Model, ModelError, ModelEvent, ModelLimits, ModelName, ModelRequest, ModelStream, Money, Part,
    ResultPart, Usage,
};
use serde_json::json;

use super::test_host::{TestHost, calls, text_answer};
use crate::event::SummaryCreated;
use crate::prompt::tool_tokens;
use crate::{
    AgentEvent, AgentSettings, Budget, Effect, ExternalTool, ExternalTools, RunOutcome, SequencedEvent,
    SummaryMode, replay,
};

/// A provider that counts `thousandths` tokens for 1,000 of ours and rejects prompts that are too long. It answers
/// with commands that print a lot until it has made `turns` turns.
struct CountingModel {
    name: ModelName,
    context_tokens: u32,
    thousandths: u64,
    turns: u32,
    turn: AtomicU32,
    /// Its answer to a summary request, with `{first}` for the first event; without one it never answers.
    summary: Option<&'static str>,
    /// The size of each prompt, by the provider's count.
    counted: Mutex<Vec<u64>>,
    refused: AtomicU32,
    asked_for_summaries: AtomicU32,
}

impl CountingModel {
    fn new(context_tokens: u32, thousandths: u64, turns: u32) -> Self {
        Self {
            name: ModelName::new("test/counting"),
            context_tokens,
            thousandths,
            turns,
            turn: AtomicU32::new(0),
            summary: None,
            counted: Mutex::default(),
            refused: AtomicU32::new(0),
            asked_for_summaries: AtomicU32::new(0),
        }
    }

    fn count(&self, request: &ModelRequest) -> u64 {
        let text = |text: &str| u64::from(context::tokens::count(text));
        let part = |part: &Part| match part {
            Part::Text(words) => text(words),
            Part::ToolCall(call) => text(&call.name) + text(&call.arguments.to_string()) + 17,
            Part::ToolResult(result) => {
                let words = result.parts.iter().map(|part| match part {
                    ResultPart::Text(words) => text(words) + 8,
                    ResultPart::Image(_) => 0,
                });
                words.sum()
            }
            Part::Image(_) | Part::Reasoning(_) => 0,
        };
        let messages: u64 =
            request.messages.iter().map(|message| message.parts.iter().map(part).sum::<u64>() + 5).sum();
        let tools: u64 = request.tools.iter().map(|tool| u64::from(tool_tokens(tool))).sum();
        (text(&request.system) + tools + messages) * self.thousandths / 1000
    }
}

#[async_trait]
impl Model for CountingModel {
    fn name(&self) -> &ModelName {
        &self.name
    }

    fn limits(&self) -> ModelLimits {
        ModelLimits {
            context_tokens: self.context_tokens,
            output_tokens: 2_000,
            vision: false,
            native_tools: true,
            reasoning: false,
        }
    }

    fn cost_at_most(&self, _: &Usage) -> Option<Money> {
        // The price that `calls` and `said` report.
        Some(Money::from_nanodollars(1_000_000))
    }

    async fn stream(&self, request: Arc<ModelRequest>) -> Result<ModelStream, ModelError> {
        let answer =
            |answer: Answer| Ok(futures::stream::iter([Ok(ModelEvent::Answer(Box::new(answer)))]).boxed());
        if request.tools.is_empty() {
            self.asked_for_summaries.fetch_add(1, Ordering::Relaxed);
            return match self.summary {
                Some(text) => answer(text_answer(&text.replace("{first}", &first_event(&request)))),
                None => std::future::pending().await,
            };
        }
        // Let the background task run.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let input = self.count(&request);
        if input > u64::from(self.context_tokens) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let model = self.name.to_string();
            let detail = "too long".into();
            return Err(ModelError::Overflow { model, requested: Some(input), limit: None, detail });
        }
        self.counted.lock().unwrap().push(input);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) + 1;
        let mut next = if turn > self.turns {
            calls(&[("finish", json!({"summary": "all done"}))])
        } else {
            calls(&[("shell", json!({"command": format!("look {turn}")}))])
        };
        next.parts.insert(0, Part::Text(format!("I look at part {turn}. ").repeat(40)));
        next.usage = Usage { input, output: 10, ..Usage::default() };
        answer(next)
    }
}

/// The first event that a summary may cite.
fn first_event(request: &ModelRequest) -> String {
    let prompt = format!("{:?}", request.messages);
    prompt.split_once("numbers between ").and_then(|(_, rest)| rest.split(' ').next()).unwrap().to_owned()
}

/// A host whose commands print about a thousand tokens each.
fn host(turns: u32) -> TestHost {
    let host = TestHost::with_task("look at all parts");
    for turn in 1..=turns {
        let lines: String =
            (0..60).map(|line| format!("part {turn} line {line} is {}\n", line * turn)).collect();
        host.program(&format!("look {turn}"), &[(&lines, 0)]);
    }
    host
}

fn windows(log: &[SequencedEvent]) -> Vec<context::Window> {
    let windows = log.iter().filter_map(|logged| match &logged.event {
        AgentEvent::ContextChanged(context::EntryBody::Window(window)) => Some(window.clone()),
        _ => None,
    });
    windows.collect()
}

fn summaries(host: &TestHost) -> Vec<SummaryCreated> {
    let log = host.log.lock().unwrap();
    let made = log.iter().filter_map(|logged| match &logged.event {
        AgentEvent::SummaryCreated(made) => Some(SummaryCreated::clone(made)),
        _ => None,
    });
    made.collect()
}

#[tokio::test]
async fn higher_provider_count_shrinks_tools_and_prompts() {
    for (window, thousandths) in [(4_096, 1_000), (4_096, 1_400), (8_192, 1_630), (8_192, 2_170)] {
        let host = host(24);
        let model = Arc::new(CountingModel::new(window, thousandths, 24));
        let mut agent =
            host.agent_of(Arc::clone(&model) as _, AgentSettings::default(), SummaryMode::Extract);
        let ending = agent.run(&host).await.unwrap();
        assert!(matches!(ending, RunOutcome::Finished(_)), "{window} {thousandths}: {ending:?}");
        assert_eq!(model.refused.load(Ordering::Relaxed), 0, "{window} {thousandths}");
        let log = host.log.lock().unwrap().clone();
        let first = windows(&log)[0].clone();
        // The first answer reveals the provider's count. After that the provider's own count applies, within what we
        // do not correct.
        let counted = model.counted.lock().unwrap().clone();
        let most = u64::from(first.budget_tokens) * 104 / 100;
        assert!(counted.iter().skip(1).all(|prompt| *prompt <= most), "{window} {thousandths}: {counted:?}");
        for (at, logged) in log.iter().enumerate() {
            let AgentEvent::TurnStarted(started) = &logged.event else { continue };
            let conversation = replay(&log[..=at]).unwrap().unwrap();
            let engine = conversation.engine();
            assert!(!engine.caller_part_is_too_large());
            let budget = engine.factor().ours(engine.budget_tokens());
            assert!(started.prompt_tokens <= budget, "{} of {budget} at {at}", started.prompt_tokens);
            assert_eq!(engine.view().with_volatile(&started.status).tokens, started.prompt_tokens);
        }
        let last = windows(&log).last().unwrap().clone();
        let fixed = |window: &context::Window| window.system_tokens + window.tools_tokens;
        if thousandths > 1_500 {
            assert!(fixed(&last) < fixed(&first), "{window} {thousandths}: tools in fewer words");
        }
    }
}

#[tokio::test]
async fn tools_stay_the_same_with_a_learned_factor_and_after_a_restart() {
    for window in [8_192, 16_384] {
        let host = host(24);
        let model = Arc::new(CountingModel::new(window, 1_350, 24));
        let mut agent = host.agent_of(model, AgentSettings::default(), SummaryMode::Extract);
        assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
        {
            let mut log = host.log.lock().unwrap();
            let learned = |logged: &SequencedEvent| {
                matches!(logged.event, AgentEvent::ContextChanged(context::EntryBody::Correction { .. }))
            };
            assert!(log.iter().any(learned), "{window}");
            assert_eq!(windows(&log).len(), 2, "{window}: the second one has the history tools");
            // A server that ends in the middle of the job.
            let half = log.len() / 2;
            log.truncate(half);
        }
        let model = Arc::new(CountingModel::new(window, 1_350, 24));
        let mut agent = host.agent_of(model, AgentSettings::default(), SummaryMode::Extract);
        assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
        assert_eq!(windows(&host.log.lock().unwrap()).len(), 2, "{window}");
    }
}

#[tokio::test]
async fn history_tools_are_offered_last_from_the_first_prompt_on_that_leaves_something_out() {
    let host = host(24);
    let model = Arc::new(CountingModel::new(16_384, 1_000, 24));
    let mut agent = host.agent_of(model, AgentSettings::default(), SummaryMode::Extract);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    let log = host.log.lock().unwrap().clone();
    let names = |window: &context::Window| -> Vec<String> {
        window.tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut has_switched = false;
    for (at, logged) in log.iter().enumerate() {
        let AgentEvent::TurnStarted(_) = &logged.event else { continue };
        let conversation = replay(&log[..=at]).unwrap().unwrap();
        let engine = conversation.engine();
        let names = names(engine.window().unwrap());
        let is_offered = names.iter().any(|name| name == "history_read");
        assert_eq!(is_offered, engine.has_left_out(), "at {at}");
        has_switched |= is_offered;
    }
    assert!(has_switched);
    let [first, second] = &windows(&log)[..] else { panic!("{} windows", windows(&log).len()) };
    let (before, after) = (names(first), names(second));
    assert_eq!(after[..before.len()], before, "what was there stays as it was");
    assert_eq!(after[before.len()..], first.held_tools);
    assert_eq!((first.system_tokens, first.tools_tokens), (second.system_tokens, second.tools_tokens));
}

#[tokio::test]
async fn history_tools_are_offered_once_a_large_output_is_shown_in_part() {
    let host = TestHost::with_task("x");
    let printed: String = (1..=9_001).map(|line| format!("line {line}\n")).collect();
    host.program("many", &[(&printed, 0)]);
    let answers = vec![
        Ok(calls(&[("shell", json!({"command": "ls"}))])),
        Ok(calls(&[("shell", json!({"command": "many"}))])),
        Ok(calls(&[("finish", json!({"summary": "x"}))])),
    ];
    let (mut agent, model) = host.agent(AgentSettings::default(), answers);
    agent.run(&host).await.unwrap();
    let requests = model.requests.lock().unwrap();
    let offers = |at: usize| requests[at].tools.iter().any(|tool| tool.name == "history_read");
    assert!(!offers(0) && !offers(1) && offers(2));
}

#[tokio::test]
async fn too_small_window_pauses_the_job() {
    let host = host(3);
    let model = Arc::new(CountingModel::new(4_096, 4_000, 3));
    let settings =
        AgentSettings { acceptance: vec!["make check-everything".into(); 20], ..AgentSettings::default() };
    let mut agent = host.agent_of(model, settings, SummaryMode::Extract);
    let RunOutcome::Paused { code, reason, .. } = agent.run(&host).await.unwrap() else {
        panic!("not paused")
    };
    assert!(code == "window_too_small" || code == "context_overflow", "{code}: {reason}");
}

#[tokio::test]
async fn external_tool_changes_are_logged_before_the_model_request() {
    let tool = |name: &str| ExternalTool {
        spec: model::ToolSpec {
            name: name.into(),
            description: "Does something.".into(),
            input_schema: json!({"type": "object", "properties": {}}),
        },
        effect: Effect::Changes,
    };
    let host = TestHost::with_task("x");
    let with = |version, tools| ExternalTools { version, is_expected: true, tools, notes: Vec::new() };
    *host.external.lock().unwrap() = with(1, vec![tool("s__one"), tool("s__two")]);
    // The second tool's server dies while a command runs.
    *host.external_later.lock().unwrap() = Some(("ls".into(), with(2, vec![tool("s__one")])));
    let answers = vec![
        Ok(calls(&[("shell", json!({"command": "ls"}))])),
        Ok(calls(&[("finish", json!({"summary": "x"}))])),
    ];
    let (mut agent, model) = host.agent(AgentSettings::default(), answers);
    agent.run(&host).await.unwrap();
    let requests = model.requests.lock().unwrap();
    let log = host.log.lock().unwrap().clone();
    let asked =
        log.iter().enumerate().filter(|(_, logged)| matches!(logged.event, AgentEvent::TurnStarted(_)));
    let mut turns = 0;
    for ((at, _), request) in asked.zip(requests.iter()) {
        let conversation = replay(&log[..=at]).unwrap().unwrap();
        let window = conversation.engine().window().unwrap();
        let logged: Vec<&str> = window.tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        let sent: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(logged, sent, "at {at}");
        assert_eq!(window.system, &*request.system);
        turns += 1;
    }
    let has_two = |at: usize| requests[at].tools.iter().any(|tool| tool.name == "s__two");
    assert!(turns == 2 && has_two(0) && !has_two(1));
    assert_eq!(windows(&log).len(), 2, "one for each change");
}

#[tokio::test]
async fn logs_without_token_counts_produce_the_same_views() {
    let host = host(24);
    let mut agent = host.agent_of(
        Arc::new(CountingModel::new(8_192, 1_000, 24)),
        AgentSettings::default(),
        SummaryMode::Extract,
    );
    agent.run(&host).await.unwrap();
    let counted = host.log.lock().unwrap().clone();
    let mut older = counted.clone();
    for logged in &mut older {
        match &mut logged.event {
            AgentEvent::ModelAnswered(answered) => {
                assert!(answered.tokens.take().is_some_and(|tokens| tokens > 100))
            }
            AgentEvent::CallEnded { end, .. } => assert!(end.tokens.take().is_some_and(|tokens| tokens > 5)),
            _ => {}
        }
    }
    let view = |log: &[SequencedEvent]| replay(log).unwrap().unwrap().engine().view().bytes();
    assert_eq!(view(&counted), view(&older));
    // The logged count is used, not computed again.
    for logged in &mut older {
        if let AgentEvent::ModelAnswered(answered) = &mut logged.event {
            answered.tokens = Some(1);
        }
    }
    assert_ne!(view(&counted), view(&older));
}

#[tokio::test]
async fn log_with_newer_policy_version_is_rejected() {
    let host = TestHost::with_task("x");
    let (mut agent, _) =
        host.agent(AgentSettings::default(), vec![Ok(calls(&[("finish", json!({"summary": "x"}))]))]);
    agent.run(&host).await.unwrap();
    let mut log = host.log.lock().unwrap().clone();
    assert!(replay(&log).is_ok());
    for logged in &mut log {
        if let AgentEvent::ContextChanged(context::EntryBody::Window(window)) = &mut logged.event {
            assert_eq!(window.policy_version, context::POLICY_VERSION);
            window.policy_version += 1;
        }
    }
    let error =
        replay(&log).err().map(|error| format!("{error}: {}", std::error::Error::source(&error).unwrap()));
    assert!(error.as_deref().is_some_and(|text| text.contains("use a newer one")), "{error:?}");
}

#[tokio::test]
async fn failing_summaries_stop_being_requested() {
    let host = host(60);
    let model =
        Arc::new(CountingModel { summary: Some("I cannot."), ..CountingModel::new(16_384, 1_000, 60) });
    let mut agent = host.agent_of(Arc::clone(&model) as _, AgentSettings::default(), SummaryMode::Model);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    let made = summaries(&host);
    assert_eq!(made.len(), 3, "{made:?}");
    assert!(made.iter().all(|made| made.summary.is_none() && made.problem.is_some()));
    // Each summary was requested twice.
    assert_eq!(model.asked_for_summaries.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn finished_summaries_are_logged_before_the_next_answer() {
    let host = host(60);
    let summary = Some("Did: looked at many parts [{first}]");
    let model = Arc::new(CountingModel { summary, ..CountingModel::new(16_384, 1_000, 60) });
    let mut agent = host.agent_of(Arc::clone(&model) as _, AgentSettings::default(), SummaryMode::Model);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    let log = host.log.lock().unwrap();
    let is_summary = |logged: &SequencedEvent| matches!(logged.event, AgentEvent::SummaryCreated(_));
    let after: Vec<&AgentEvent> =
        log.windows(2).filter(|pair| is_summary(&pair[0])).map(|pair| &pair[1].event).collect();
    assert!(after.len() > 3, "{} summaries", after.len());
    // Later, the answer might already have begun the epoch that needs the summary.
    assert!(after.iter().all(|event| matches!(event, AgentEvent::ModelAnswered(_))), "{after:?}");
}

#[tokio::test]
async fn unfinished_summary_is_billed_when_the_work_ends() {
    let host = host(60);
    let model = Arc::new(CountingModel::new(16_384, 1_000, 60));
    let mut agent = host.agent_of(model, AgentSettings::default(), SummaryMode::Model);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    let [made] = &summaries(&host)[..] else { panic!("{:?}", summaries(&host)) };
    assert!(made.abandoned && made.usage.input > 500, "{made:?}");
    let answered: u64 = {
        let log = host.log.lock().unwrap();
        let inputs = log.iter().map(|logged| match &logged.event {
            AgentEvent::ModelAnswered(answered) => answered.answer.usage.input,
            _ => 0,
        });
        inputs.sum()
    };
    assert_eq!(agent.conversation().spent().input_tokens, answered + made.usage.input);
    // The summary can be requested again.
    assert!(!agent.conversation().was_summarized(&made.input_hash));
}

#[tokio::test]
async fn unaffordable_summaries_are_not_requested() {
    let asked = |money_usd| async move {
        let host = host(30);
        let model =
            Arc::new(CountingModel { summary: Some("I cannot."), ..CountingModel::new(16_384, 1_000, 30) });
        let budget = Budget { money_usd: Some(money_usd), ..Budget::default() };
        let settings = AgentSettings { budget, ..AgentSettings::default() };
        let mut agent = host.agent_of(Arc::clone(&model) as _, settings, SummaryMode::Model);
        agent.run(&host).await.unwrap();
        let log = host.log.lock().unwrap();
        let is_summary = |logged: &SequencedEvent| matches!(logged.event, AgentEvent::SummaryCreated(_));
        let is_turn = |logged: &&SequencedEvent| matches!(logged.event, AgentEvent::TurnStarted(_));
        // The turn of the first summary, if any.
        log.iter().position(is_summary).map(|at| log[..at].iter().filter(is_turn).count())
    };
    // Every answer costs a thousandth of a dollar.
    let first = asked(1.0).await;
    assert!(first.is_some_and(|turn| turn < 8), "{first:?}");
    assert_eq!(asked(0.008).await, None);
}
