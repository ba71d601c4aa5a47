//! How long the sandbox of a job was frozen, for example because the host's disk was full. That time is not work.
//!
//! A server that is killed records no `sandbox_resumed`. The next one does, so the time in between counts as frozen.

use super::JobView;

impl JobView {
    /// How long the sandbox was frozen in total, in milliseconds. Does not contain time during which the job was paused
    /// or queued, because [`JobView::paused_ms`] does.
    #[must_use]
    pub fn frozen_until(&self, now_ms: i64) -> i64 {
        let since = self.frozen_since_ms.filter(|_| self.paused_since_ms.is_none());
        self.frozen_ms.saturating_add(since.map_or(0, |since| now_ms.saturating_sub(since).max(0)))
    }

    pub(super) fn freeze(&mut self, time_ms: i64) {
        if self.state.is_over() {
            return;
        }
        self.frozen_since_ms.get_or_insert(time_ms);
        self.track_agent_time(time_ms);
    }

    /// The sandbox runs again, or is gone.
    pub(super) fn thaw(&mut self, time_ms: i64) {
        if self.frozen_since_ms.is_none() {
            return;
        }
        self.count_frozen_time(time_ms);
        self.frozen_since_ms = None;
        self.track_agent_time(time_ms);
    }

    /// Adds up the time before a change of what counts.
    pub(super) fn count_frozen_time(&mut self, time_ms: i64) {
        self.frozen_ms = self.frozen_until(time_ms);
        self.frozen_since_ms = self.frozen_since_ms.map(|_| time_ms);
    }

    pub(super) fn track_agent_time(&mut self, time_ms: i64) {
        let is_frozen = self.frozen_since_ms.is_some();
        if let Some(agent) = &mut self.agent {
            agent.track_working_time(self.state, is_frozen, time_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox::SandboxId;

    use super::*;
    use crate::event::{Event, EventBody};
    use crate::ids::JobId;
    use crate::spec::{JobDefaults, NewJob};
    use crate::state::JobState;

    fn at(time_ms: i64, state: JobState) -> (i64, EventBody) {
        (time_ms, EventBody::StateChanged { state, code: None, reason: None })
    }

    fn frozen(time_ms: i64, sandbox: SandboxId) -> (i64, EventBody) {
        let (code, reason) = ("host_disk_full".into(), "the disk is full".into());
        (time_ms, EventBody::SandboxPaused { sandbox, code, reason })
    }

    fn thawed(time_ms: i64, sandbox: SandboxId) -> (i64, EventBody) {
        (time_ms, EventBody::SandboxResumed { sandbox })
    }

    /// The view of an agent's job after these events, which follow its start at 1000.
    fn view_after(events: Vec<(i64, EventBody)>) -> JobView {
        let spec = serde_json::from_str::<NewJob>(r#"{"task":"t"}"#).unwrap();
        let spec = Box::new(spec.check(&JobDefaults::default()).unwrap());
        let begin = [
            (0, EventBody::JobCreated { spec }),
            at(10, JobState::Queued),
            at(1_000, JobState::Starting),
            at(1_000, JobState::Running),
        ];
        let log: Vec<Event> = begin
            .into_iter()
            .chain(events)
            .zip(1..)
            .map(|((time_ms, body), sequence)| Event { sequence, time_ms, call: None, actor: None, body })
            .collect();
        JobView::of_log(JobId::generate(), &log).unwrap()
    }

    fn worked(view: &JobView, now_ms: i64) -> i64 {
        view.agent.as_ref().unwrap().worked_until(now_ms)
    }

    #[test]
    fn frozen_time_is_not_work() {
        let sandbox = SandboxId::generate();
        let view = view_after(vec![frozen(2_000, sandbox), thawed(5_000, sandbox)]);
        assert_eq!((view.frozen_until(9_000), worked(&view, 9_000)), (3_000, 5_000));
        let stored: JobView = serde_json::from_str(&serde_json::to_string(&view).unwrap()).unwrap();
        assert_eq!(stored, view);
    }

    #[test]
    fn sandbox_that_a_killed_server_froze_counts_as_frozen_until_the_next_server_resumes_it() {
        let sandbox = SandboxId::generate();
        let mut events = vec![frozen(2_000, sandbox)];
        let view = view_after(events.clone());
        assert_eq!((view.frozen_until(60_000), worked(&view, 60_000)), (58_000, 1_000));
        // The disk is still full: the next server says so again.
        events.extend([frozen(60_000, sandbox), thawed(70_000, sandbox)]);
        let view = view_after(events);
        assert_eq!((view.frozen_until(80_000), worked(&view, 80_000)), (68_000, 11_000));
    }

    #[test]
    fn time_that_is_both_frozen_and_paused_counts_once() {
        let sandbox = SandboxId::generate();
        let mut events = vec![frozen(2_000, sandbox), at(3_000, JobState::Paused)];
        assert_eq!(view_after(events.clone()).frozen_until(9_000), 1_000);
        events.extend([at(10_000, JobState::Running), thawed(14_000, sandbox)]);
        let view = view_after(events);
        assert_eq!((view.paused_ms, view.frozen_until(20_000)), (7_000, 5_000));
        assert_eq!(worked(&view, 20_000), 7_000);
    }

    #[test]
    fn new_sandbox_is_not_frozen() {
        let (old, new) = (SandboxId::generate(), SandboxId::generate());
        let requested = (4_000, EventBody::SandboxRequested { sandbox: new });
        let view = view_after(vec![frozen(2_000, old), requested]);
        assert_eq!((view.frozen_until(9_000), worked(&view, 9_000)), (2_000, 6_000));
    }
}
