//! The agent loop: build the prompt, ask the model, run the tool calls, repeat until the work ends or must wait.

mod admission;
mod background_summaries;
mod changed_files;
mod meant_tool;
mod model_request;
mod offered_tools;
mod repository_map;
mod tool_calls;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use context::{Engine, Settings, Window};
use model::{Image, Model, ModelLimits, ToolSpec};

use self::background_summaries::Summaries;
use self::changed_files::KnownFiles;
use self::repository_map::Mapper;
use crate::conversation::{Conversation, Verdict, VisionSupport, check_versions, first_window};
use crate::error::AgentError;
use crate::event::{AgentEvent, Finished, Notice, NoticeCode, SequencedEvent};
use crate::host::{ExternalTools, Host, Stopped};
use crate::input_request::InputRequest;
use crate::prompt::{self, Messages, PromptInputs, PromptRoom};
use crate::recall::Recall;
use crate::settings::{AgentSettings, SummaryMode};
use crate::tools::Toolbox;

/// Why [`Agent::run`] returned.
#[derive(Debug, Clone, PartialEq)]
pub enum RunOutcome {
    Finished(Finished),
    /// The agent kept repeating itself, even after a nudge. It starts over if it is run again.
    Stuck(String),
    /// The job waits for a person's answer.
    Waiting(InputRequest),
    /// The job is paused until something changes, such as its budget.
    Paused {
        /// Machine-readable code.
        code: String,
        /// Human-readable reason.
        reason: String,
        /// Minimum delay before an automatic retry, if one can help and the provider gives a delay.
        retry_after: Option<Duration>,
    },
}

pub struct AgentParts {
    pub settings: AgentSettings,
    pub model: Arc<dyn Model>,
    /// Tools that the image supports, most important first.
    pub toolbox: Toolbox,
    /// External tools that are known at the start.
    pub extra: ExternalTools,
    /// The job's egress policy in words, for the system prompt.
    pub egress: String,
    /// Identical in all requests of a job, so that the provider can reuse its prompt cache.
    pub cache_key: String,
    /// Searches earlier events.
    pub recall: Recall,
    pub summaries: SummaryMode,
}

pub struct Agent {
    settings: AgentSettings,
    toolbox: Toolbox,
    /// All built-in tools that the job may use.
    all_tools: Toolbox,
    /// The built-in tools that fit into the window.
    own_tools: Toolbox,
    egress: String,
    /// Whether the history tools are offered. Once they are, they stay.
    offers_history: bool,
    external_version: Option<u64>,
    external_reserve: u32,
    external_notes: Vec<String>,
    conversation: Conversation,
    limits: ModelLimits,
    model: Arc<dyn Model>,
    system: Arc<str>,
    window: Window,
    /// The window that was last written to the log.
    logged_window: Option<Window>,
    specs: Arc<[ToolSpec]>,
    messages: Messages,
    cache_key: String,
    overflows: u32,
    /// The background processes whose end the model was told without being able to ask for it.
    told_ends: HashSet<String>,
    /// The ends of background processes that the last prompt told of.
    ends_in_prompt: Vec<String>,
    /// The images in the current prompt, by digest.
    pictures: HashMap<String, Image>,
    recall: Recall,
    summary_mode: SummaryMode,
    /// Behind a lock, because calls that run in parallel log what has finished.
    summaries: Mutex<Summaries>,
    known_files: Mutex<KnownFiles>,
    mapper: Mapper,
}

impl Agent {
    /// Creates an agent that continues where the log ends.
    ///
    /// # Errors
    /// The model's window is too small to work with, or the log cannot be read.
    pub fn new(parts: AgentParts, past: &[SequencedEvent]) -> Result<Self, AgentError> {
        let AgentParts { settings, model, mut toolbox, extra, egress, cache_key, recall, summaries } = parts;
        let limits = model.limits();
        prompt::keep_weak_model_tools(&limits, settings.approve_plan, &mut toolbox);
        let mut inputs = PromptInputs {
            model: &*model,
            settings: &settings,
            egress: &egress,
            toolbox: &toolbox,
            external: &extra,
            offers_history: false,
        };
        let room = PromptRoom::for_model(&*model);
        let mut fitted = prompt::fit(&inputs, room);
        Settings::from(&fitted.window).check()?;
        check_versions(past)?;
        let first = first_window(past).unwrap_or(&fitted.window);
        let (engine, sight) = (Engine::new(Settings::from(first))?, VisionSupport::of(first));
        let mut conversation = Conversation::new(engine, settings.budget, sight);
        for logged in past {
            conversation.apply(logged);
        }
        let learned_room = room.with_learned_limits(&*model, conversation.engine());
        let logged_window = conversation.engine().window();
        inputs.offers_history = logged_window.is_some_and(prompt::has_history_tools);
        if let Some(kept) = logged_window.and_then(|logged| prompt::keep(&inputs, logged)) {
            fitted = kept;
        } else if inputs.offers_history {
            fitted = prompt::fit(&inputs, room);
        }
        if !learned_room.tolerates(&fitted.window) {
            fitted = prompt::fit(&inputs, learned_room);
        }
        let offers_history = inputs.offers_history;
        let mut agent = Self {
            offers_history,
            all_tools: toolbox,
            toolbox: fitted.toolbox.clone(),
            own_tools: fitted.toolbox,
            settings,
            egress,
            external_version: None,
            external_reserve: fitted.reserve,
            external_notes: Vec::new(),
            conversation,
            limits,
            model,
            system: fitted.window.system.as_str().into(),
            logged_window: None,
            window: fitted.window,
            specs: Arc::default(),
            messages: Messages::default(),
            cache_key,
            overflows: 0,
            told_ends: HashSet::new(),
            ends_in_prompt: Vec::new(),
            pictures: HashMap::new(),
            recall,
            summary_mode: summaries,
            summaries: Mutex::default(),
            known_files: Mutex::default(),
            mapper: Mapper::default(),
        };
        agent.logged_window = agent.conversation.engine().window().cloned();
        agent.update_external_tools(&extra);
        Ok(agent)
    }

    /// Logs the current window if it changed. Returns whether it did.
    async fn log_window(&mut self, host: &dyn Host) -> Result<bool, Stopped> {
        if self.logged_window.as_ref() == Some(&self.window) {
            return Ok(false);
        }
        host.record(vec![prompt::window_event(&self.window)]).await?;
        self.logged_window = Some(self.window.clone());
        Ok(true)
    }

    #[must_use]
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// Works until the job ends or must wait. Call it again once the agent has what it waited for.
    ///
    /// # Errors
    /// [`Stopped`] when the host stops the work.
    pub async fn run(&mut self, host: &dyn Host) -> Result<RunOutcome, Stopped> {
        let ending = self.work(host).await;
        // Record the cost of unfinished summaries even though their results are no longer needed.
        let left = self.summaries().abandon();
        if !left.is_empty() {
            let recorded = host.record(left).await;
            // The reason why the work stopped takes precedence over this write error.
            let ending = ending?;
            recorded?;
            self.apply_new_events(host).await?;
            return Ok(ending);
        }
        ending
    }

    /// Lets an agent that was stuck start over: a user resumed the job.
    async fn leave_stuck(&mut self, host: &dyn Host) -> Result<(), Stopped> {
        self.apply_new_events(host).await?;
        match self.conversation.stuck().verdict() {
            Verdict::Stuck(reason) if self.conversation.open_calls().next().is_none() => {
                let text = format!(
                    "you were stuck, and a user has resumed the job: {reason}. Try a different approach now"
                );
                let notice = Notice { code: NoticeCode::Resumed, text };
                host.record(vec![AgentEvent::Notified(notice)]).await
            }
            _ => Ok(()),
        }
    }

    async fn work(&mut self, host: &dyn Host) -> Result<RunOutcome, Stopped> {
        self.leave_stuck(host).await?;
        self.log_window(host).await?;
        loop {
            self.apply_new_events(host).await?;
            if let Some(finished) = self.conversation.finished() {
                return Ok(RunOutcome::Finished(finished.clone()));
            }
            host.check().await?;
            // A handback that lets the check pass may have been appended after the events above were read; the next
            // prompt must contain it.
            self.apply_new_events(host).await?;
            self.update_external_tools(&host.external_tools());
            if self.log_window(host).await? {
                continue;
            }
            if self.conversation.open_calls().next().is_some() {
                if let Some(ending) = self.run_calls(host).await? {
                    return Ok(ending);
                }
                continue;
            }
            match self.conversation.stuck().verdict() {
                Verdict::Stuck(reason) => return Ok(RunOutcome::Stuck(reason)),
                Verdict::Nudge(text) => {
                    let notice = Notice { code: NoticeCode::Nudge, text };
                    host.record(vec![AgentEvent::Notified(notice)]).await?;
                    continue;
                }
                Verdict::Fine => {}
            }
            if let Some(ending) = self.budget_ending(host) {
                return Ok(ending);
            }
            let external = host.external_tools();
            if self.offer_history_tools(&external) || self.reselect_tools(&external) {
                continue;
            }
            if self.conversation.engine().caller_part_is_too_large() {
                return Ok(self.too_small());
            }
            if self.prepare(host).await? {
                continue;
            }
            if let Some(ending) = self.ask(host).await? {
                return Ok(ending);
            }
        }
    }

    /// The background summaries. An event that may start an epoch is logged after those that have finished: the epoch
    /// then uses them.
    fn summaries(&self) -> MutexGuard<'_, Summaries> {
        self.summaries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn apply_new_events(&mut self, host: &dyn Host) -> Result<(), Stopped> {
        for logged in host.news().await? {
            self.conversation.apply(&logged);
        }
        Ok(())
    }

    fn budget_ending(&self, host: &dyn Host) -> Option<RunOutcome> {
        let conversation = &self.conversation;
        let budget = conversation.budget();
        if let Some(reached) = budget.reached(conversation.spent(), host.worked().as_secs()) {
            let reason = format!("{reached}. Resume the job with a larger budget; nothing is lost");
            return Some(out_of_budget(reason));
        }
        let unpriced = self.model.unpriced().filter(|_| budget.money_usd.is_some())?;
        Some(out_of_budget(format!(
            "the price of {unpriced} is unknown; give it in the configuration ([model.prices]), or the budget of money \
             cannot hold"
        )))
    }

    /// The ending for a window in which even the minimal set of tools leaves no room for the task.
    fn too_small(&self) -> RunOutcome {
        let engine = self.conversation.engine();
        let reason = format!(
            "the prompts of {} may be {} tokens, and its provider counts {:.2} for one of ours: that is too small for \
             the instructions, the fewest tools and the task; use a model with a larger window",
            self.window.model,
            engine.budget_tokens(),
            f64::from(engine.factor().thousandths()) / 1000.0
        );
        RunOutcome::Paused { code: "window_too_small".into(), reason, retry_after: None }
    }

    /// The remaining working time of the job; `None` if it is not limited.
    fn time_left(&self, host: &dyn Host) -> Option<Duration> {
        let limit = Duration::from_secs(self.conversation.budget().wall_s?);
        Some(limit.saturating_sub(host.worked()))
    }

    /// The ending when the time limit passes during a model request or a tool call.
    fn time_is_over(&self, host: &dyn Host) -> RunOutcome {
        let limit = self.conversation.budget().wall_s.unwrap_or_default();
        self.budget_ending(host).unwrap_or_else(|| {
            out_of_budget(format!(
                "{limit} of {limit} seconds of work are used. Resume the job with a larger budget; nothing is lost"
            ))
        })
    }

    /// Collects finished summaries and a fresh repository map before the model is asked. Returns whether it logged
    /// anything.
    async fn prepare(&mut self, host: &dyn Host) -> Result<bool, Stopped> {
        let mut events = self.summaries().finished();
        events.extend(self.mapper.refresh(host, &self.conversation).await?);
        if !events.is_empty() {
            host.record(events).await?;
            return Ok(true);
        }
        if self.summary_mode == SummaryMode::Model {
            self.summaries().begin(&self.model, &self.conversation, &self.cache_key);
        }
        // While everything is still in view, there is nothing to search for.
        if self.conversation.engine().epochs() > 0 {
            self.recall.follow(self.conversation.records(), host.now_ms());
        }
        Ok(false)
    }
}

fn out_of_budget(reason: String) -> RunOutcome {
    RunOutcome::Paused { code: "budget".into(), reason, retry_after: None }
}
