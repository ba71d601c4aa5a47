//! What arrives while the model is being asked: it has not read it, so it follows the answer.

use super::*;

fn append(engine: &mut Engine, id: u64, body: EntryBody) {
    engine.append(Entry::new(EventId(id), 0, body)).unwrap();
}

fn user(text: &str) -> EntryBody {
    EntryBody::User { text: text.into(), images: Vec::new() }
}

fn answer(calls: &[&str]) -> EntryBody {
    let call = |id: &&str| context::Call {
        id: (*id).into(),
        name: "shell".into(),
        arguments: serde_json::json!({ "command": "ls" }),
    };
    EntryBody::Assistant {
        reasoning: Vec::new(),
        text: "I look.".into(),
        calls: calls.iter().map(call).collect(),
    }
}

fn result(call: &str) -> EntryBody {
    let call = call.to_owned();
    EntryBody::Result(context::CallResult { call, text: "ok".into(), ..context::CallResult::default() })
}

/// The events of the view in order, without the task.
fn order(engine: &Engine) -> Vec<u64> {
    let view = engine.view();
    let shown = view.segments.iter().filter(|segment| is_in_history(segment));
    shown.map(|segment| segment.covers.unwrap().first.0).collect()
}

#[test]
fn a_message_during_a_request_follows_the_answer_and_its_results() {
    let mut engine = Engine::new(settings(16_000)).unwrap();
    append(&mut engine, 1, user("the task"));
    append(&mut engine, 2, user("read before the answer"));
    engine.begin_request();
    append(&mut engine, 4, user("not read yet"));
    assert_eq!(order(&engine), [2, 4]);
    append(&mut engine, 5, answer(&["a", "b"]));
    append(&mut engine, 6, result("a"));
    append(&mut engine, 7, user("while the calls run"));
    append(&mut engine, 8, result("b"));
    assert_eq!(order(&engine), [2, 5, 6, 8, 4, 7]);
    engine.begin_request();
    append(&mut engine, 10, answer(&[]));
    assert_eq!(order(&engine), [2, 5, 6, 8, 4, 7, 10]);
}

#[test]
fn a_message_is_read_by_the_request_after_a_failed_one() {
    let mut engine = Engine::new(settings(16_000)).unwrap();
    append(&mut engine, 1, user("the task"));
    engine.begin_request();
    append(&mut engine, 3, user("while the request fails"));
    engine.begin_request();
    append(&mut engine, 5, answer(&[]));
    assert_eq!(order(&engine), [3, 5]);
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn requests_at_any_point_keep_the_invariants(
        log in log(60), budget in 0_usize..BUDGETS.len(), asked in prop::collection::vec(any::<bool>(), 1..40)
    ) {
        let mut engine = Engine::new(settings(BUDGETS[budget])).unwrap();
        let mut before: Vec<u8> = Vec::new();
        for (at, entry) in log.iter().enumerate() {
            if at > 0 && asked[at % asked.len()] {
                engine.begin_request();
            }
            let appended = engine.append(entry.clone()).unwrap();
            let view = engine.view();
            prop_assert!(view.tokens <= engine.policy().high);
            prop_assert_eq!(view.tokens, engine.tokens());
            check_coverage(&view, &log[..=at]);
            let now = stable_bytes(&view);
            prop_assert!(appended == Appended::Epoch || now.starts_with(&before));
            before = now;
        }
    }
}
