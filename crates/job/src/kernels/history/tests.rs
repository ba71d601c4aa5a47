//! Tests which cells are lost, which are refused, and which are replayed.

use proptest::prelude::*;
use sandbox::{EndReason, SandboxId};
use serde_json::json;

use super::*;
use crate::event::KernelUse;
use crate::event::UserAction;

/// A log that the tests build up.
#[derive(Default)]
struct Log(Vec<Event>);

impl Log {
    fn add(&mut self, call: Option<CallRef>, body: EventBody) {
        let sequence = self.0.len() as u64 + 1;
        self.0.push(Event { sequence, time_ms: 0, call, actor: None, body });
    }

    fn start(&mut self, call: &CallRef, step: Option<usize>, code: &str) {
        let (tool, input) = ("python".to_owned(), json!({"code": code}));
        self.add(Some(call.clone()), EventBody::CallStarted { step, tool, input });
    }

    fn end(&mut self, call: &CallRef, end: CallEnd) {
        self.add(Some(call.clone()), EventBody::CallEnded(end));
    }

    /// Runs a cell of `python3` successfully.
    fn run(&mut self, id: &str, step: Option<usize>, code: &str, life: u64) {
        let call = CallRef { id: id.into(), attempt: 1 };
        self.start(&call, step, code);
        self.end(&call, ended(life));
    }

    fn lose(&mut self, steps_kept: usize) {
        let (sandbox, reason) = (SandboxId::generate(), EndReason::Lost);
        let kernels = self.history().would_lose(steps_kept);
        self.add(
            None,
            EventBody::SandboxLost { sandbox, reason, detail: "gone".into(), steps_kept, kernels },
        );
    }

    fn history(&self) -> KernelHistory {
        KernelHistory::of(&self.0)
    }

    /// Replays everything that is to be replayed, and returns the calls.
    fn replay(&mut self, life: u64) -> Vec<String> {
        let mut ran = Vec::new();
        while let Some(replay) = self.history().next_replay() {
            if !replay.is_begun {
                self.start(&replay.call, replay.cell.step, replay.cell.code());
            }
            self.end(&replay.call, ended(life));
            ran.push(format!("{}.{}", replay.call.id, replay.call.attempt));
        }
        ran
    }
}

fn ended(life: u64) -> CallEnd {
    let kernel = KernelUse { name: "python3".into(), language: "python".into(), life, alive: true };
    CallEnd { kernel: Some(kernel), ..CallEnd::default() }
}

fn refused() -> CallEnd {
    CallEnd { status: CallStatus::Failed, code: Some(KERNEL_LOST.into()), ..ended(0) }
}

const PYTHON: KernelSelector<'_> = KernelSelector::Language("python");

#[test]
fn next_job_cell_and_next_api_cell_are_each_refused_once() {
    let mut log = Log::default();
    log.run("step-1", Some(0), "x = 1\ny = 2", 1);
    log.run("api-1", None, "z = 3", 1);
    log.run("step-2", Some(1), "undone = 4", 1);
    log.lose(1);
    let history = log.history();
    let (lost, failed) = history.unreported_loss(&PYTHON, false, false).unwrap();
    assert_eq!((lost.cells, lost.variables.join(" ").as_str(), failed), (2, "x y z", None));
    for name in ["python3", "python"] {
        assert_eq!(history.unreported_loss(&KernelSelector::Name(name), true, false).unwrap().0, lost);
    }
    assert_eq!(history.unreported_loss(&KernelSelector::Language("typescript"), false, false), None);
    // Its cells are replayed instead.
    assert_eq!(history.unreported_loss(&PYTHON, false, true), None);
    let EventBody::SandboxLost { kernels, .. } = &log.0.last().unwrap().body else { panic!() };
    assert_eq!(kernels, &[lost]);
    let call = CallRef { id: "step-2".into(), attempt: 2 };
    log.start(&call, Some(1), "undone = 4");
    log.end(&call, refused());
    assert_eq!(log.history().unreported_loss(&PYTHON, false, false), None);
    assert!(log.history().is_settled(false) && !log.history().is_settled(true));
    let call = CallRef { id: "api-2".into(), attempt: 1 };
    log.start(&call, None, "x");
    log.end(&call, refused());
    assert_eq!(log.history().unreported_loss(&PYTHON, true, false), None);
    assert!(log.history().is_settled(true));
}

#[test]
fn kernel_that_ended_before_the_sandbox_loses_nothing() {
    let dead = |end: CallEnd| CallEnd {
        kernel: end.kernel.map(|kernel| KernelUse { alive: false, ..kernel }),
        ..end
    };
    let call = CallRef { id: "step-2".into(), attempt: 1 };
    let mut died = Log::default();
    died.run("step-1", Some(0), "x = 1", 1);
    died.start(&call, Some(1), "exit()");
    died.end(&call, dead(ended(1)));
    let mut restarted = Log::default();
    restarted.run("step-1", Some(0), "x = 1", 1);
    let action = UserAction::on_named(UserActionKind::KernelRestarted, "python3");
    restarted.add(None, EventBody::UserAction(action));
    let mut fresh = Log::default();
    let call = CallRef { id: "step-1".into(), attempt: 1 };
    fresh.start(&call, Some(0), "x = 1");
    fresh.end(&call, CallEnd::default());
    for mut log in [died, restarted, fresh] {
        log.lose(9);
        assert_eq!(log.history().unreported_loss(&PYTHON, false, false), None);
        assert_eq!(log.history().next_replay(), None);
    }
    let mut second = Log::default();
    second.run("step-1", Some(0), "x = 1", 1);
    second.run("step-2", Some(1), "y = 1", 2);
    assert_eq!(second.history().would_lose(9)[0].variables, ["y"]);
}

#[test]
fn replay_continues_after_a_server_restart_without_repeating() {
    let mut log = Log::default();
    log.run("step-1", Some(0), "x = 1", 1);
    log.run("turn-2-1", None, "y = 1", 1);
    log.lose(1);
    let first = log.history().next_replay().unwrap();
    assert!(!first.is_begun);
    log.start(&first.call, first.cell.step, first.cell.code());
    let again = log.history().next_replay().unwrap();
    assert_eq!((&again.call, again.is_begun), (&first.call, true));
    assert_eq!(log.replay(1), ["step-1.2", "turn-2-1.2"]);
    assert!(log.history().is_settled(false));
    // After another loss, everything is replayed again, including the replay that was interrupted.
    log.lose(1);
    let call = log.history().next_replay().unwrap().call;
    log.start(&call, Some(0), "x = 1");
    log.end(&call, CallEnd { status: CallStatus::Interrupted, ..CallEnd::default() });
    log.lose(1);
    assert_eq!(log.replay(1), ["step-1.4", "turn-2-1.3"]);
}

#[test]
fn failed_replay_stops_and_the_next_cell_is_refused() {
    let failed = CallEnd { status: CallStatus::Failed, ..ended(1) };
    let not_started = CallEnd { status: CallStatus::Failed, ..CallEnd::default() };
    for end in [failed, not_started] {
        let mut log = Log::default();
        log.run("step-1", Some(0), "x = 1", 1);
        log.run("step-2", Some(1), "y = 1", 1);
        log.lose(2);
        let call = log.history().next_replay().unwrap().call;
        log.start(&call, Some(0), "x = 1");
        log.end(&call, end);
        assert_eq!(log.history().next_replay(), None);
        let (lost, failed) = log.history().unreported_loss(&PYTHON, false, true).unwrap();
        assert_eq!((lost.cells, failed.as_deref()), (2, Some("step-1")));
    }
}

/// An event in the life of a kernel.
#[derive(Debug, Clone)]
enum KernelEvent {
    Cell,
    Death,
    Loss,
    LossInReplay(usize),
}

proptest! {
    /// Whatever happens, a replay runs exactly the cells that the kernel had run since it was started, in the same
    /// order.
    #[test]
    fn replay_restores_exactly_the_cells_the_kernel_had_run(transitions in prop::collection::vec(
        prop_oneof![
            4 => Just(KernelEvent::Cell),
            1 => Just(KernelEvent::Death),
            2 => Just(KernelEvent::Loss),
            1 => (0usize..3).prop_map(KernelEvent::LossInReplay),
        ],
        1..25,
    )) {
        let mut log = Log::default();
        let (mut alive, mut life): (Vec<String>, u64) = (Vec::new(), 1);
        for (number, happens) in transitions.iter().enumerate() {
            match happens {
                KernelEvent::Cell => {
                    log.run(&format!("turn-{number}"), None, "x = 1", life);
                    alive.push(format!("turn-{number}"));
                }
                KernelEvent::Death => {
                    life += 1;
                    log.add(None, EventBody::UserAction(UserAction::on_named(UserActionKind::KernelRestarted, "python3")));
                    alive.clear();
                }
                KernelEvent::Loss | KernelEvent::LossInReplay(_) => {
                    log.lose(0);
                    life = 1;
                    if let KernelEvent::LossInReplay(done) = happens {
                        for _ in 0..*done {
                            let Some(replay) = log.history().next_replay() else { break };
                            log.start(&replay.call, None, replay.cell.code());
                            log.end(&replay.call, ended(life));
                        }
                        log.lose(0);
                    }
                    let ran: Vec<String> =
                        log.replay(life).into_iter().map(|call| call.rsplit_once('.').unwrap().0.to_owned()).collect();
                    prop_assert_eq!(&ran, &alive);
                }
            }
        }
    }
}
