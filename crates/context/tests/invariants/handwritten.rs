//! The same invariants on hand-written histories, one for each.

use context::tokens;

use super::*;

#[test]
fn one_event_larger_than_the_budget_is_cut_and_the_next_view_still_fits() {
    let ops = [
        Op::User { size: Size::Huge(3000) },
        Op::Answer { text: Size::Huge(3000), reasoning: true, calls: Vec::new() },
        Op::User { size: Size::TenMegabytes },
    ];
    for budget in BUDGETS {
        after_each(&expand(&ops), budget, |engine, view, _, _| assert!(view.tokens <= engine.policy().high));
    }
}

/// An engine with many answers, each with a command. Model summaries are provided whenever they are due.
fn with_a_model(budget: u32, said: impl Fn(&context::SummaryTask) -> String) -> (Engine, usize) {
    let answers = (0..120).map(|_| Op::Answer { text: Size::Page(12), reasoning: false, calls: Vec::new() });
    let mut engine = Engine::new(settings(budget)).unwrap();
    let (mut next, mut taken) = (0, 0);
    let mut append = |engine: &mut Engine, body: EntryBody| {
        next += 1;
        engine.append(Entry::new(EventId(next), 0, body)).unwrap();
    };
    for entry in expand(&answers.collect::<Vec<_>>()) {
        append(&mut engine, entry.body);
        for task in engine.due_summaries() {
            if let Ok(summary) = task.check(&said(&task)) {
                append(&mut engine, EntryBody::Summary(summary));
                taken += 1;
            }
        }
    }
    (engine, taken)
}

#[test]
fn model_summary_covers_its_range_within_the_limit() {
    for budget in [8_000, 16_000, 32_000] {
        // As long as the check allows.
        let said = |task: &context::SummaryTask| {
            let mut text = format!("Did: looked [{}]", task.range);
            while tokens::count(&text) + 4 <= task.max_tokens {
                text.push_str(" again");
            }
            text
        };
        let (engine, taken) = with_a_model(budget, said);
        assert!(taken > 2 && engine.epochs() > 0, "{taken} summaries, {} epochs", engine.epochs());
        let view = engine.view();
        let by_model: Vec<&Segment> = view
            .segments
            .iter()
            .filter(|segment| {
                matches!(segment.kind, SegmentKind::Summary { author: context::Author::Model, .. })
            })
            .collect();
        assert!(!by_model.is_empty(), "no summary of the model is used at {budget}");
        for segment in view.segments.iter().filter(|segment| is_summary(segment)) {
            assert!(segment.tokens <= engine.policy().summary_tokens, "{} at {budget}", segment.tokens);
        }
        // A summary that is too long with its heading is rejected by the check, not accepted and then ignored.
        let (_, taken) = with_a_model(budget, |task| said(task) + &" again".repeat(24));
        assert_eq!(taken, 0);
    }
}

#[test]
fn short_messages_are_not_folded_into_a_larger_summary() {
    let mut engine = Engine::new(settings(16_000)).unwrap();
    let mut next = 0;
    let mut append = |engine: &mut Engine, body: EntryBody| {
        next += 1;
        engine.append(Entry::new(EventId(next), 0, body)).unwrap();
    };
    while engine.tokens() < engine.policy().high - 200 {
        append(&mut engine, EntryBody::User { text: "go on".into(), images: Vec::new() });
    }
    let before = engine.tokens();
    append(&mut engine, EntryBody::Tighten { limit_tokens: Some(16_000) });
    assert!(engine.tokens() <= before, "{} after {before}", engine.tokens());
    for _ in 0..200 {
        append(&mut engine, EntryBody::User { text: "go on".into(), images: Vec::new() });
        assert!(engine.tokens() <= engine.policy().high);
    }
}

#[test]
fn ten_million_tokens_of_history_stay_within_every_budget() {
    let output: String =
        (0..220).map(|line| format!("{line} }}{{)(*&^%$#@!~ <>|; ]][[ {}\n", line * 7919)).collect();
    let result_tokens = tokens::count(&output);
    assert!(result_tokens > 4_000, "{result_tokens}");
    for budget in [4_096, 1_048_576] {
        let mut engine = Engine::new(settings(budget)).unwrap();
        let (mut total, mut next) = (0_u64, 0);
        append_counted(
            &mut engine,
            &mut next,
            20,
            EntryBody::User { text: "TASK".into(), images: Vec::new() },
        );
        while total < 10_000_000 {
            let call = context::Call {
                id: format!("call-{next}"),
                name: "shell".into(),
                arguments: serde_json::json!({ "command": format!("make part-{next}") }),
            };
            let id = call.id.clone();
            let answer =
                EntryBody::Assistant { reasoning: Vec::new(), text: "I look.".into(), calls: vec![call] };
            append_counted(&mut engine, &mut next, 60, answer);
            let result =
                context::CallResult { call: id, text: output.clone(), ..context::CallResult::default() };
            append_counted(&mut engine, &mut next, result_tokens + 16, EntryBody::Result(result));
            assert!(engine.tokens() <= engine.policy().high, "{} of {budget} at {next}", engine.tokens());
            total += u64::from(result_tokens) + 76;
        }
        let view = engine.view().with_volatile("status");
        assert!(
            view.tokens <= view.budget && recount(&view) <= view.budget,
            "{} of {budget}",
            recount(&view)
        );
        assert!(engine.epochs() > 1);
    }
}

/// Appends an entry with a known token count, because counting ten million tokens takes long.
fn append_counted(engine: &mut Engine, next: &mut u64, tokens: u32, body: EntryBody) {
    *next += 1;
    engine.append(Entry { id: EventId(*next), time_ms: 0, tokens, body }).unwrap();
}

#[test]
fn a_batch_of_a_thousand_calls_fits_into_four_thousand_tokens() {
    let call = generate::CallOp {
        argument: Size::Line(200),
        output: Size::Page(3),
        arrives: generate::Arrival::InTime,
        is_error: false,
        has_image: false,
    };
    let ops = [Op::Answer { text: Size::Line(3), reasoning: false, calls: vec![call; 1000] }];
    after_each(&expand(&ops), 4_096, |engine, view, _, _| assert!(view.tokens <= engine.policy().high));
}

#[test]
fn oversized_map_does_not_displace_events() {
    let call = generate::CallOp {
        argument: Size::Line(3),
        output: Size::Line(200),
        arrives: generate::Arrival::InTime,
        is_error: false,
        has_image: false,
    };
    let calls =
        (0..5).map(|_| Op::Answer { text: Size::Line(3), reasoning: false, calls: vec![call.clone()] });
    let ops: Vec<Op> = calls.chain([Op::Map { size: Size::Huge(3000) }]).collect();
    let log = expand(&ops);
    let engine = Engine::from_log(settings(16_000), log.clone()).unwrap();
    assert_eq!(engine.epochs(), 1);
    let view = engine.view();
    let kind = |id| {
        let segment = view
            .segments
            .iter()
            .find(|segment| is_in_history(segment) && segment.covers.is_some_and(|range| range.first == id));
        segment.map(|segment| segment.kind)
    };
    let (map, events) = log[1..].split_last().unwrap();
    for event in events {
        assert_eq!(kind(event.id), Some(SegmentKind::Raw), "{}", event.id);
    }
    assert_eq!(kind(map.id), Some(SegmentKind::Masked), "it stands in the head");
    assert!(view.segments.iter().any(|segment| segment.kind == SegmentKind::Map));
}

#[test]
fn rejected_prompt_shrinks_the_view() {
    let answers = (0..300).map(|_| Op::Answer { text: Size::Page(5), reasoning: false, calls: Vec::new() });
    let ops: Vec<Op> = answers.collect();
    let mut engine = Engine::from_log(settings(32_000), expand(&ops)).unwrap();
    let before = engine.tokens();
    let mut next = engine.newest().unwrap().0;
    let mut tighten = |limit_tokens| {
        next += 1;
        let entry = Entry::new(EventId(next), 0, EntryBody::Tighten { limit_tokens });
        assert_eq!(engine.append(entry).unwrap(), Appended::Epoch);
        (engine.tokens(), engine.policy().budget)
    };
    assert_eq!(tighten(Some(20_000)).1, 19_600);
    let (tokens, budget) = tighten(None);
    assert_eq!(budget, 15_680);
    assert!(tokens <= budget && tokens < before);
    // A limit above our budget cannot be the reason, so our count is wrong.
    assert_eq!(tighten(Some(1_000_000)).1, 14_400);
    // Tightening stops at a minimum instead of zero.
    for _ in 0..50 {
        tighten(None);
    }
    let floor = tighten(None).1;
    assert_eq!(floor, 3 * (32_000 / 20 + 32_000 / 10));
}

#[test]
fn logged_window_sets_the_prompt_budget() {
    let window = |model: &str, budget_tokens| Window {
        model: model.into(),
        budget_tokens,
        system: "Be brief.".into(),
        system_tokens: 100,
        tools_tokens: 300,
        ..Window::default()
    };
    let mut engine = Engine::new(Settings::from(&window("a", 20_000))).unwrap();
    let mut next = 0;
    let mut append = |engine: &mut Engine, body| {
        next += 1;
        engine.append(Entry::new(EventId(next), 0, body)).unwrap()
    };
    append(&mut engine, EntryBody::User { text: "hello".into(), images: Vec::new() });
    // The first window repeats what the engine began with.
    assert_eq!(append(&mut engine, EntryBody::Window(window("a", 20_000))), Appended::Grown);
    append(&mut engine, EntryBody::Tighten { limit_tokens: Some(10_000) });
    append(&mut engine, EntryBody::Correction { factor: Factor::from_thousandths(1_250) });
    let tight = engine.policy().budget;
    assert_eq!(tight, 9_800 * 4 / 5);
    // Logged again after a restart: the learned limits still apply.
    assert_eq!(append(&mut engine, EntryBody::Window(window("a", 20_000))), Appended::Grown);
    assert_eq!(engine.policy().budget, tight);
    // A different model resets the learned limits.
    assert_eq!(append(&mut engine, EntryBody::Window(window("b", 30_000))), Appended::Epoch);
    assert_eq!((engine.policy().budget, engine.factor()), (30_000, Factor::ONE));
    // Nonsensical values are harmless.
    let nonsense =
        Window { budget_tokens: u32::MAX, system_tokens: u32::MAX, tools_tokens: u32::MAX, ..window("c", 0) };
    append(&mut engine, EntryBody::Window(nonsense));
    append(&mut engine, EntryBody::Window(window("d", 0)));
    assert!(engine.view().tokens <= engine.policy().high);
}

#[test]
fn out_of_order_entries_are_rejected() {
    let mut engine = Engine::new(settings(8_000)).unwrap();
    let entry = |id| Entry::new(EventId(id), 0, EntryBody::User { text: "hello".into(), images: Vec::new() });
    engine.append(entry(7)).unwrap();
    let error = engine.append(entry(7)).unwrap_err().to_string();
    assert_eq!(error, "append e7 to the context: the newest entry is e7 already, and numbers only grow");
}

#[test]
fn small_windows_get_fewer_tools() {
    let tools = [150_u32; 20];
    let count = |budget: u32| settings(budget).policy().tools_that_fit(200, &tools);
    assert_eq!((count(4_096), count(8_192), count(100_000)), (5, 12, 20));
}

#[test]
fn masks_name_the_command_its_exit_code_and_how_to_recall_it() {
    let call = |output| generate::CallOp {
        argument: Size::Line(4),
        output,
        arrives: generate::Arrival::InTime,
        is_error: false,
        has_image: false,
    };
    let ops: Vec<Op> = (0..60)
        .map(|_| Op::Answer { text: Size::Line(20), reasoning: false, calls: vec![call(Size::Page(40))] })
        .collect();
    let mut stubs: BTreeMap<EventId, String> = BTreeMap::new();
    after_each(&expand(&ops), 32_000, |_, view, _, _| {
        for segment in view.segments.iter().filter(|segment| segment.kind == SegmentKind::Masked) {
            let Content::Result { text, .. } = &segment.content else { panic!("{segment:?}") };
            stubs.insert(segment.covers.unwrap().first, text.to_string());
        }
    });
    let (id, stub) = stubs.first_key_value().unwrap();
    assert!(stub.starts_with(&format!("[obs {id}: cargo test 0, exit 0, ")), "{stub}");
    assert!(stub.ends_with(&format!(" tokens, 40 lines; history_read {id}]")), "{stub}");
}
