//! Properties of the log as a whole: any list of events folds to a view, whatever order they come in, and what is stored
//! is read back unchanged.

mod events;
mod jobs;

use proptest::prelude::*;

use self::events::log;
use self::jobs::job;
use crate::event::Event;
use crate::ids::JobId;
use crate::kernels::KernelHistory;
use crate::log_text::describe_event;
use crate::spec::{JobDefaults, JobSpec};
use crate::view::JobView;

/// Enough to find what a change breaks; the fuzz targets look for longer.
fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_log_folds_to_a_view_and_to_text(events in log()) {
        let view = JobView::of_log(JobId::generate(), &events).unwrap();
        prop_assert!(view.steps_succeeded <= view.step_count);
        prop_assert!(view.paused_ms >= 0 && view.frozen_until(i64::MAX) >= 0);
        if let Some(agent) = &view.agent {
            prop_assert!(agent.worked_until(i64::MAX) >= 0);
        }
        KernelHistory::of(&events).would_lose(0);
        let mut text = String::new();
        events.iter().for_each(|event| describe_event(event, &mut text));
    }

    /// A server that restarts reads the stored view, and goes on from there.
    #[test]
    fn stored_view_and_the_rest_of_the_log_fold_to_the_same_view(events in log(), cut in any::<prop::sample::Index>()) {
        let (id, cut) = (JobId::generate(), cut.index(events.len()) + 1);
        let stored = serde_json::to_string(&JobView::of_log(id, &events[..cut]).unwrap()).unwrap();
        let mut view: JobView = serde_json::from_str(&stored).unwrap();
        for event in &events[cut..] {
            view.apply(event);
        }
        prop_assert_eq!(Some(view), JobView::of_log(id, &events));
    }

    #[test]
    fn events_are_read_back_as_they_were_stored(events in log()) {
        for event in events {
            let stored = serde_json::to_string(&event).unwrap();
            let read: Event = serde_json::from_str(&stored).unwrap();
            prop_assert_eq!(&read, &event, "{}", stored);
            prop_assert!(stored.contains(&format!("\"kind\":\"{}\"", event.body.kind())), "{}", stored);
        }
    }

    #[test]
    fn specs_are_read_back_as_they_were_stored(job in job()) {
        let spec = job.check(&JobDefaults::default()).unwrap();
        let stored = serde_json::to_string(&spec).unwrap();
        let read: JobSpec = serde_json::from_str(&stored).unwrap();
        prop_assert_eq!(read, spec, "{}", stored);
    }
}
