//! One turn after another: prompt, model, tool calls, until the work is over or must wait.

mod asking;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use context::{Engine, Settings, Window};
use model::{Image, Model, ModelLimits, ToolSpec};

use crate::ahead::Summaries;
use crate::conversation::{Conversation, Sight};
use crate::error::AgentError;
use crate::event::{AgentEvent, Finished, Logged, Notice, NoticeCode};
use crate::extra::ExtraTools;
use crate::host::{Host, Stopped};
use crate::mapping::Mapper;
use crate::messages::Messages;
use crate::recall::Recall;
use crate::replay;
use crate::request::PersonRequest;
use crate::settings::{AgentSettings, SummaryMode};
use crate::stuck::Verdict;
use crate::tool::Toolbox;
use crate::window::{self, Offer, Room};

/// Where the work stands when the agent returns.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// It is over.
    Finished(Finished),
    /// The agent turned in circles, also after a nudge.
    Stuck(String),
    /// A person must answer first.
    Waiting(PersonRequest),
    /// Something must change first.
    Paused {
        /// For programs.
        code: String,
        /// For people.
        reason: String,
        /// Where it may help to go on by itself: how long at least, as far as the provider says.
        retry_after: Option<Duration>,
    },
}

/// What an agent is made of.
pub struct AgentParts {
    /// What holds for the job.
    pub settings: AgentSettings,
    /// Who answers.
    pub model: Arc<dyn Model>,
    /// The tools that the image can serve, the most needed first.
    pub toolbox: Toolbox,
    /// Tools from elsewhere, as far as they are known at the start.
    pub extra: ExtraTools,
    /// What the job's egress policy is, in words.
    pub egress: String,
    /// The same in all requests of a job.
    pub cache_key: String,
    /// Finds earlier events.
    pub recall: Recall,
    /// Who writes summaries.
    pub summaries: SummaryMode,
}

/// The agent of one job.
pub struct Agent {
    pub(crate) settings: AgentSettings,
    pub(crate) toolbox: Toolbox,
    /// All tools of ours that the job may have.
    all_tools: Toolbox,
    /// Those that fit.
    own_tools: Toolbox,
    egress: String,
    extra_version: Option<u64>,
    extra_reserve: u32,
    extra_notes: Vec<String>,
    pub(crate) conversation: Conversation,
    pub(crate) limits: ModelLimits,
    model: Arc<dyn Model>,
    system: Arc<str>,
    window: Window,
    /// The window that was written down last.
    named: Option<Window>,
    specs: Arc<[ToolSpec]>,
    messages: Messages,
    cache_key: String,
    overflows: u32,
    /// The pictures that the model looks at, by digest.
    pictures: HashMap<String, Image>,
    pub(crate) recall: Recall,
    summary_mode: SummaryMode,
    summaries: Summaries,
    mapper: Mapper,
}

impl Agent {
    /// An agent that goes on where the log ends.
    ///
    /// # Errors
    /// The model's window is too small for anything.
    pub fn new(parts: AgentParts, past: &[Logged]) -> Result<Self, AgentError> {
        let AgentParts { settings, model, mut toolbox, extra, egress, cache_key, recall, summaries } = parts;
        let limits = model.limits();
        window::simplify(&limits, settings.approve_plan, &mut toolbox);
        let offer =
            Offer { model: &*model, settings: &settings, egress: &egress, toolbox: &toolbox, extra: &extra };
        let room = Room::of_model(&*model);
        let mut fitted = window::fit(&offer, room);
        Settings::from(&fitted.window).check()?;
        replay::check_versions(past)?;
        let first = replay::first_window(past).unwrap_or(&fitted.window);
        let (engine, sight) = (Engine::new(Settings::from(first))?, Sight::of(first));
        let mut conversation = Conversation::new(engine, settings.budget, sight);
        for logged in past {
            conversation.apply(logged);
        }
        let taught = room.taught(&*model, conversation.engine());
        if !taught.holds(&fitted.window) {
            fitted = window::fit(&offer, taught);
        }
        let mut agent = Self {
            all_tools: toolbox,
            toolbox: fitted.toolbox.clone(),
            own_tools: fitted.toolbox,
            settings,
            egress,
            extra_version: None,
            extra_reserve: fitted.reserve,
            extra_notes: Vec::new(),
            conversation,
            limits,
            model,
            system: fitted.window.system.as_str().into(),
            named: None,
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
        agent.named = agent.conversation.engine().window().cloned();
        agent.take_extra(&extra);
        Ok(agent)
    }

    /// Chooses the tools again where what refused prompts and the provider's usage have taught leaves less room than they
    /// take. Says whether they have changed.
    fn fit_again(&mut self, extra: &ExtraTools) -> bool {
        let room = Room::of_model(&*self.model).taught(&*self.model, self.conversation.engine());
        if room.holds(&self.window) {
            return false;
        }
        let offer = Offer {
            model: &*self.model,
            settings: &self.settings,
            egress: &self.egress,
            toolbox: &self.all_tools,
            extra,
        };
        let fitted = window::fit(&offer, room);
        if fitted.window.system == *self.system && fitted.window.tools_tokens == self.window.tools_tokens {
            return false;
        }
        self.system = fitted.window.system.as_str().into();
        (self.window, self.own_tools, self.extra_reserve) = (fitted.window, fitted.toolbox, fitted.reserve);
        self.extra_version = None;
        self.take_extra(extra);
        true
    }

    /// Writes down what prompts are made for, where that has changed. Says whether it has.
    async fn name_window(&mut self, host: &dyn Host) -> Result<bool, Stopped> {
        if self.named.as_ref() == Some(&self.window) {
            return Ok(false);
        }
        host.record(vec![window::named(&self.window)]).await?;
        self.named = Some(self.window.clone());
        Ok(true)
    }

    /// Takes in which tools there are from elsewhere, where that has changed.
    fn take_extra(&mut self, extra: &ExtraTools) {
        if self.extra_version == Some(extra.version) {
            return;
        }
        let (fitting, notes) = extra.fitting(self.extra_reserve, self.own_tools.len());
        self.toolbox = self.own_tools.with(fitting);
        self.specs = self.toolbox.specs().into();
        self.window.tools = window::written(&self.specs);
        self.extra_version = Some(extra.version);
        self.extra_notes = notes;
    }

    /// What happened so far.
    #[must_use]
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// Works until it is over or must wait. May be called again when what it waited for has come.
    ///
    /// # Errors
    /// The host wants it to stop.
    pub async fn run(&mut self, host: &dyn Host) -> Result<Ending, Stopped> {
        let ending = self.work(host).await;
        // What was asked for must be paid for, though nobody reads it any more.
        let left = self.summaries.abandon();
        if !left.is_empty() {
            let recorded = host.record(left).await;
            // Why the work has stopped matters more than that this could not be written down.
            let ending = ending?;
            recorded?;
            self.take_news(host).await?;
            return Ok(ending);
        }
        ending
    }

    async fn work(&mut self, host: &dyn Host) -> Result<Ending, Stopped> {
        self.name_window(host).await?;
        loop {
            self.take_news(host).await?;
            if let Some(finished) = self.conversation.finished() {
                return Ok(Ending::Finished(finished.clone()));
            }
            host.check().await?;
            // A handback that lets the check pass may have been appended after the events above were read; the next
            // prompt must contain it.
            self.take_news(host).await?;
            self.take_extra(&host.extra_tools());
            if self.name_window(host).await? {
                continue;
            }
            if self.conversation.open_calls().next().is_some() {
                if let Some(ending) = self.run_calls(host).await? {
                    return Ok(ending);
                }
                continue;
            }
            match self.conversation.stuck().verdict() {
                Verdict::Stuck(why) => return Ok(Ending::Stuck(why)),
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
            if self.fit_again(&host.extra_tools()) {
                continue;
            }
            if self.conversation.engine().is_cramped() {
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

    pub(crate) async fn take_news(&mut self, host: &dyn Host) -> Result<(), Stopped> {
        for logged in host.news().await? {
            self.conversation.apply(&logged);
        }
        Ok(())
    }

    pub(crate) fn budget_ending(&self, host: &dyn Host) -> Option<Ending> {
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

    /// The ending when not even the fewest tools leave room for the task.
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

    /// What is left of the time that the job may work; nothing where that is not limited.
    pub(crate) fn time_left(&self, host: &dyn Host) -> Option<Duration> {
        let limit = Duration::from_secs(self.conversation.budget().wall_s?);
        Some(limit.saturating_sub(host.worked()))
    }

    /// The ending when that time is over in the middle of something.
    pub(crate) fn time_is_over(&self, host: &dyn Host) -> Ending {
        let limit = self.conversation.budget().wall_s.unwrap_or_default();
        self.budget_ending(host).unwrap_or_else(|| {
            out_of_budget(format!(
                "{limit} of {limit} seconds of work are used; resume it with a larger budget, nothing is lost"
            ))
        })
    }

    /// What is due before the model is asked: summaries that have come, a fresh map. Says whether something was written.
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
        // As long as everything is in view there is nothing to find.
        if self.conversation.engine().epochs() > 0 {
            self.recall.follow(self.conversation.records(), host.now_ms());
        }
        Ok(false)
    }
}

/// A job that waits for a larger budget.
fn out_of_budget(reason: String) -> Ending {
    Ending::Paused { code: "budget".into(), reason, retry_after: None }
}
