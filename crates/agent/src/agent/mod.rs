//! The agent loop: build the prompt, ask the model, run the tool calls, repeat until the work ends or must wait.

mod admission;
mod background_summaries;
mod model_request;
mod repository_map;
mod tool_calls;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use context::{Engine, Settings, Window};
use model::{Image, Model, ModelLimits, ToolSpec};

use self::background_summaries::Summaries;
use self::repository_map::Mapper;
use crate::conversation::{Conversation, Sight, Verdict, check_versions, first_window};
use crate::error::AgentError;
use crate::event::{AgentEvent, Finished, Logged, Notice, NoticeCode};
use crate::host::{ExternalTools, Host, Stopped};
use crate::input_request::PersonRequest;
use crate::prompt::{self, Messages, PromptInputs, PromptRoom};
use crate::recall::Recall;
use crate::settings::{AgentSettings, SummaryMode};
use crate::tools::Toolbox;

/// Why [`Agent::run`] returned.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    Finished(Finished),
    /// The agent kept repeating itself, even after a nudge.
    Stuck(String),
    /// The job waits for a person's answer.
    Waiting(PersonRequest),
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
    /// The images in the current prompt, by digest.
    pictures: HashMap<String, Image>,
    recall: Recall,
    summary_mode: SummaryMode,
    summaries: Summaries,
    mapper: Mapper,
}

impl Agent {
    /// Creates an agent that continues where the log ends.
    ///
    /// # Errors
    /// The model's window is too small to work with, or the log cannot be read.
    pub fn new(parts: AgentParts, past: &[Logged]) -> Result<Self, AgentError> {
        let AgentParts { settings, model, mut toolbox, extra, egress, cache_key, recall, summaries } = parts;
        let limits = model.limits();
        prompt::keep_weak_model_tools(&limits, settings.approve_plan, &mut toolbox);
        let inputs = PromptInputs {
            model: &*model,
            settings: &settings,
            egress: &egress,
            toolbox: &toolbox,
            external: &extra,
        };
        let room = PromptRoom::for_model(&*model);
        let mut fitted = prompt::fit(&inputs, room);
        Settings::from(&fitted.window).check()?;
        check_versions(past)?;
        let first = first_window(past).unwrap_or(&fitted.window);
        let (engine, sight) = (Engine::new(Settings::from(first))?, Sight::of(first));
        let mut conversation = Conversation::new(engine, settings.budget, sight);
        for logged in past {
            conversation.apply(logged);
        }
        let learned_room = room.with_learned_limits(&*model, conversation.engine());
        if !learned_room.holds(&fitted.window) {
            fitted = prompt::fit(&inputs, learned_room);
        }
        let mut agent = Self {
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
            pictures: HashMap::new(),
            recall,
            summary_mode: summaries,
            summaries: Summaries::default(),
            mapper: Mapper::default(),
        };
        agent.logged_window = agent.conversation.engine().window().cloned();
        agent.update_external_tools(&extra);
        Ok(agent)
    }

    /// Selects the tools again if refused prompts or the provider's reported usage have left less room than the
    /// tools take. Returns whether the selection changed.
    fn reselect_tools(&mut self, external: &ExternalTools) -> bool {
        let room =
            PromptRoom::for_model(&*self.model).with_learned_limits(&*self.model, self.conversation.engine());
        if room.holds(&self.window) {
            return false;
        }
        let inputs = PromptInputs {
            model: &*self.model,
            settings: &self.settings,
            egress: &self.egress,
            toolbox: &self.all_tools,
            external,
        };
        let fitted = prompt::fit(&inputs, room);
        if fitted.window.system == *self.system && fitted.window.tools_tokens == self.window.tools_tokens {
            return false;
        }
        self.system = fitted.window.system.as_str().into();
        (self.window, self.own_tools, self.external_reserve) =
            (fitted.window, fitted.toolbox, fitted.reserve);
        self.external_version = None;
        self.update_external_tools(external);
        true
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

    /// Applies changes in the set of external tools.
    fn update_external_tools(&mut self, external: &ExternalTools) {
        if self.external_version == Some(external.version) {
            return;
        }
        let (fitting, notes) =
            prompt::fitting_external_tools(external, self.external_reserve, self.own_tools.len());
        self.toolbox = self.own_tools.with_external(fitting);
        self.specs = self.toolbox.specs().into();
        self.window.tools = prompt::specs_as_json(&self.specs);
        self.external_version = Some(external.version);
        self.external_notes = notes;
    }

    #[must_use]
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// Works until the job ends or must wait. Call it again once the agent has what it waited for.
    ///
    /// # Errors
    /// [`Stopped`] when the host stops the work.
    pub async fn run(&mut self, host: &dyn Host) -> Result<Ending, Stopped> {
        let ending = self.work(host).await;
        // Record the cost of unfinished summaries even though their results are no longer needed.
        let left = self.summaries.abandon();
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

    async fn work(&mut self, host: &dyn Host) -> Result<Ending, Stopped> {
        self.log_window(host).await?;
        loop {
            self.apply_new_events(host).await?;
            if let Some(finished) = self.conversation.finished() {
                return Ok(Ending::Finished(finished.clone()));
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
                Verdict::Stuck(reason) => return Ok(Ending::Stuck(reason)),
                Verdict::Nudge(text) => {
                    let notice = Notice { code: NoticeCode::Nudge, text };
                    host.record(vec![AgentEvent::Told(notice)]).await?;
                    continue;
                }
                Verdict::Fine => {}
            }
            if let Some(ending) = self.budget_ending(host) {
                return Ok(ending);
            }
            if self.reselect_tools(&host.external_tools()) {
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

    async fn apply_new_events(&mut self, host: &dyn Host) -> Result<(), Stopped> {
        for logged in host.news().await? {
            self.conversation.apply(&logged);
        }
        Ok(())
    }

    fn budget_ending(&self, host: &dyn Host) -> Option<Ending> {
        let conversation = &self.conversation;
        let budget = conversation.budget();
        if let Some(reached) = budget.reached(conversation.spent(), host.worked().as_secs()) {
            let reason = format!("{reached}; resume it with a larger budget, nothing is lost");
            return Some(out_of_budget(reason));
        }
        let unpriced = self.model.unpriced().filter(|_| budget.money_usd.is_some())?;
        Some(out_of_budget(format!(
            "the price of {unpriced} is unknown; give it in the configuration ([model.prices]), or the budget of money \
             cannot hold"
        )))
    }

    /// The ending for a window in which even the minimal set of tools leaves no room for the task.
    fn too_small(&self) -> Ending {
        let engine = self.conversation.engine();
        let reason = format!(
            "the prompts of {} may be {} tokens, and its provider counts {:.2} for one of ours: that is too small for \
             the instructions, the fewest tools and the task; use a model with a larger window",
            self.window.model,
            engine.budget_tokens(),
            f64::from(engine.factor().thousandths()) / 1000.0
        );
        Ending::Paused { code: "window_too_small".into(), reason, retry_after: None }
    }

    /// The remaining working time of the job; `None` if it is not limited.
    fn time_left(&self, host: &dyn Host) -> Option<Duration> {
        let limit = Duration::from_secs(self.conversation.budget().wall_s?);
        Some(limit.saturating_sub(host.worked()))
    }

    /// The ending when the time limit passes during a model request or a tool call.
    fn time_is_over(&self, host: &dyn Host) -> Ending {
        let limit = self.conversation.budget().wall_s.unwrap_or_default();
        self.budget_ending(host).unwrap_or_else(|| {
            out_of_budget(format!(
                "{limit} of {limit} seconds of work are used; resume it with a larger budget, nothing is lost"
            ))
        })
    }

    /// Collects finished summaries and a fresh repository map before the model is asked. Returns whether it logged
    /// anything.
    async fn prepare(&mut self, host: &dyn Host) -> Result<bool, Stopped> {
        let mut events = self.summaries.finished();
        events.extend(self.mapper.refresh(host, &self.conversation).await?);
        if !events.is_empty() {
            host.record(events).await?;
            return Ok(true);
        }
        if self.summary_mode == SummaryMode::Model {
            self.summaries.begin(&self.model, &self.conversation, &self.cache_key);
        }
        // While everything is still in view, there is nothing to search for.
        if self.conversation.engine().epochs() > 0 {
            self.recall.follow(self.conversation.records(), host.now_ms());
        }
        Ok(false)
    }
}

fn out_of_budget(reason: String) -> Ending {
    Ending::Paused { code: "budget".into(), reason, retry_after: None }
}
