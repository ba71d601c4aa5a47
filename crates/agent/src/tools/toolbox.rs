//! The tools of a job.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::ToolSpec;

use super::builtin::builtin_names;
use super::short_spec::{ShortSpec, without_sentences};
use super::tool::AnyTool;
use crate::conversation::is_history_tool;
use crate::host::{Capability, ExternalTool};

/// The tools of a job in the order of the prompt, most important first.
#[derive(Clone)]
pub struct Toolbox {
    tools: Vec<Arc<dyn AnyTool>>,
}

impl Toolbox {
    /// Keeps the tools that the image can run; of several with the same name the first.
    #[must_use]
    pub fn new(tools: Vec<Arc<dyn AnyTool>>, abilities: &BTreeSet<Capability>) -> Self {
        let is_supported = |tool: &Arc<dyn AnyTool>| {
            tool.needs().is_empty() || tool.needs().iter().any(|need| abilities.contains(need))
        };
        let mut names = BTreeSet::new();
        let mut tools: Vec<_> = tools.into_iter().filter(is_supported).collect();
        tools.retain(|tool| names.insert(tool.name().to_owned()));
        Self { tools }
    }

    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<dyn AnyTool>> {
        self.tools.iter().find(|tool| tool.name() == name)
    }

    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.tools.iter().map(|tool| tool.name().to_owned()).collect()
    }

    /// The specifications that the model receives. Those of built-in tools mention only tools that are there.
    #[must_use]
    pub fn specs(&self) -> Vec<ToolSpec> {
        let missing: Vec<String> = builtin_names()
            .into_iter()
            .filter(|name| self.find(name).is_none())
            .map(|name| format!("`{name}`"))
            .collect();
        let spec = |tool: &Arc<dyn AnyTool>| {
            let spec = tool.spec();
            if tool.is_builtin() { without_sentences(spec, &missing) } else { spec }
        };
        self.tools.iter().map(spec).collect()
    }

    /// These tools followed by the given external tools. The history tools come last, because they are added while the
    /// job runs: the list before them stays as it was.
    #[must_use]
    pub(crate) fn with_external(&self, external: Vec<ExternalTool>) -> Self {
        let mut tools = self.tools.clone();
        tools.extend(external.into_iter().map(|tool| Arc::new(tool) as Arc<dyn AnyTool>));
        tools.sort_by_key(|tool| tool.is_builtin() && is_history_tool(tool.name()));
        Self { tools }
    }

    pub(crate) fn len(&self) -> usize {
        self.tools.len()
    }

    /// Keeps the tools whose name satisfies the condition.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.tools.retain(|tool| is_wanted(tool.name()));
    }

    /// The same tools with short descriptions.
    pub(crate) fn with_short_specs(&self) -> Self {
        let shorten = |tool: &Arc<dyn AnyTool>| Arc::new(ShortSpec(Arc::clone(tool))) as Arc<dyn AnyTool>;
        Self { tools: self.tools.iter().map(shorten).collect() }
    }
}
