//! Which tools the model is offered: when the selection changes while the job runs, and how a call finds its tool.

use std::sync::Arc;

use super::Agent;
use crate::conversation::is_history_tool;
use crate::host::ExternalTools;
use crate::prompt::{self, FixedPart, PromptInputs, PromptRoom};
use crate::tools::AnyTool;

impl Agent {
    /// Selects the tools again if refused prompts or the provider's reported usage have left much less room than was
    /// assumed. Returns whether the selection changed.
    pub(super) fn reselect_tools(&mut self, external: &ExternalTools) -> bool {
        let room =
            PromptRoom::for_model(&*self.model).with_learned_limits(&*self.model, self.conversation.engine());
        if room.tolerates(&self.window) {
            return false;
        }
        let fitted = prompt::fit(&self.prompt_inputs(external), room);
        if fitted.window.system == *self.system && fitted.window.tools_tokens == self.window.tools_tokens {
            return false;
        }
        self.use_fixed_part(fitted, external);
        true
    }

    /// Offers the history tools from the first prompt on that leaves something out. Returns whether they are new.
    pub(super) fn offer_history_tools(&mut self, external: &ExternalTools) -> bool {
        if self.offers_history || !self.conversation.engine().has_left_out() {
            return false;
        }
        self.offers_history = true;
        let Some(fitted) = prompt::keep(&self.prompt_inputs(external), &self.window) else { return false };
        self.use_fixed_part(fitted, external);
        true
    }

    fn prompt_inputs<'a>(&'a self, external: &'a ExternalTools) -> PromptInputs<'a> {
        PromptInputs {
            model: &*self.model,
            settings: &self.settings,
            egress: &self.egress,
            toolbox: &self.all_tools,
            external,
            offers_history: self.offers_history,
        }
    }

    fn use_fixed_part(&mut self, fixed: FixedPart, external: &ExternalTools) {
        self.system = fixed.window.system.as_str().into();
        (self.window, self.own_tools, self.external_reserve) = (fixed.window, fixed.toolbox, fixed.reserve);
        self.external_version = None;
        self.update_external_tools(external);
    }

    /// The tool of this name. The history tools also run before they are offered, because some models call them anyway.
    pub(super) fn find_tool(&self, name: &str) -> Option<&Arc<dyn AnyTool>> {
        self.toolbox.find(name).or_else(|| self.all_tools.find(name).filter(|_| is_history_tool(name)))
    }

    /// Applies changes in the set of external tools.
    pub(super) fn update_external_tools(&mut self, external: &ExternalTools) {
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
}
