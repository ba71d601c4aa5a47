//! How the loop treats a tool, beside what its call does.

/// What a tool says about its place among the others. `OPTIONAL` is right for most.
#[derive(Debug, Clone, Copy)]
pub struct ToolRole {
    pub importance: Importance,
    /// Whether the job could neither continue nor end without the tool: no rule denies it, and it may be called before
    /// the plan is accepted.
    pub is_control: bool,
    /// Names that models know it by from elsewhere, in lower case, without `_` and `-`.
    pub other_names: &'static [&'static str],
}

/// Which windows a tool is offered in, if there is not enough room for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Importance {
    /// Without it, the agent cannot act, finish, or read what a prompt names but does not show. History tools are offered
    /// once there is something to read with them.
    Always,
    /// A window without room for it gets short tool descriptions.
    Basic,
    /// Simple enough for a weak model to choose.
    Simple,
    Optional,
}

impl ToolRole {
    pub const OPTIONAL: Self = Self { importance: Importance::Optional, is_control: false, other_names: &[] };
}
