//! Read access to the state.

use std::collections::BTreeMap;

use context::Engine;

use super::finish_checks::FinishChecks;
use super::{Conversation, OpenCall, Record, Reply, Stage, StuckDetector};
use crate::budget::{Budget, Spent};
use crate::event::{Finished, ProcessState};
use crate::input_request::InputRequest;
use crate::plan::Plan;

impl Conversation {
    /// The calls of the newest answer that have not ended, in order.
    pub fn open_calls(&self) -> impl Iterator<Item = &OpenCall> {
        self.calls.iter().filter(|open| open.stage != Stage::Ended)
    }

    /// The request that a call has made of a person, and its state.
    #[must_use]
    pub fn request_of(&self, call: &str) -> Option<&(InputRequest, Reply)> {
        self.requests.get(call)
    }

    #[must_use]
    pub fn request_count(&self) -> usize {
        self.requests.len()
    }

    /// The context engine, which holds the prompt so far.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The status text at the end of the pending prompt; `None` while no model request is pending.
    #[must_use]
    pub fn asked(&self) -> Option<&str> {
        self.asked.as_deref()
    }

    /// How many messages from people no prompt has had yet.
    #[must_use]
    pub fn unread_messages(&self) -> usize {
        self.unread_messages
    }

    /// Whether a summary with this input hash was requested before, successfully or not.
    #[must_use]
    pub fn was_summarized(&self, input_hash: &str) -> bool {
        self.summarized.contains(input_hash)
    }

    /// The number of consecutive failed summary requests.
    #[must_use]
    pub fn failed_summaries(&self) -> u32 {
        self.failed_summaries
    }

    /// The number of turns started.
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.turn
    }

    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Whether a person has accepted a plan.
    #[must_use]
    pub fn is_plan_accepted(&self) -> bool {
        self.is_plan_accepted
    }

    /// Background processes, by handle.
    #[must_use]
    pub fn processes(&self) -> &BTreeMap<String, ProcessState> {
        &self.processes
    }

    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    #[must_use]
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    #[must_use]
    pub fn stuck(&self) -> &StuckDetector {
        &self.stuck
    }

    /// Notices that only the next prompt includes.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The complete history, for searching and for `memory.json`.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    #[must_use]
    pub fn finished(&self) -> Option<&Finished> {
        self.finished.as_ref()
    }

    /// What speaks against the end of the work.
    #[must_use]
    pub(crate) fn finish_checks(&self) -> &FinishChecks {
        &self.finish_checks
    }
}
