//! Generates logs as irregular as real ones: parallel calls, results that are out of order, late or missing, giants,
//! unicode, corrections, rejected prompts.

use context::{Call, CallResult, Entry, EntryBody, EventId, Factor, Image, Window};
use proptest::prelude::*;
use serde_json::json;

#[derive(Debug, Clone)]
pub(crate) enum Op {
    User {
        size: Size,
    },
    Answer {
        text: Size,
        reasoning: bool,
        calls: Vec<CallOp>,
    },
    Plan {
        size: Size,
    },
    Note {
        name: u8,
        size: Size,
    },
    Map {
        size: Size,
    },
    Correction {
        thousandths: u32,
    },
    Tighten {
        limit: Option<u32>,
    },
    /// Another model, or other tools.
    Window {
        budget: u32,
        share: u8,
    },
    /// A result without a call.
    OrphanResult,
}

#[derive(Debug, Clone)]
pub(crate) struct CallOp {
    pub(crate) argument: Size,
    pub(crate) output: Size,
    pub(crate) arrives: Arrival,
    pub(crate) is_error: bool,
    pub(crate) has_image: bool,
}

/// When a result arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    InTime,
    /// Before the results of earlier calls of the batch.
    First,
    /// After a person's message.
    Interrupted,
    /// After the next answer has begun.
    Late,
    Never,
}

/// The size of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Size {
    Empty,
    Line(u8),
    Page(u16),
    Huge(u16),
    TenMegabytes,
}

pub(crate) fn text(size: Size, salt: u64) -> String {
    let word =
        ["cargo test", "ошибка в строке", "src/engine/core.rs:42", "日本語テキスト", "fn main() {}", "👩‍🚀 ok"]
            [(salt % 6) as usize];
    match size {
        Size::Empty => String::new(),
        Size::Line(length) => format!("{word} {salt} ").repeat(usize::from(length) / 16 + 1),
        Size::Page(lines) => (0..usize::from(lines))
            .map(|line| format!("{word} {salt}:{line} error: value {line} != {salt}\n"))
            .collect(),
        Size::Huge(lines) => (0..usize::from(lines))
            .map(|line| format!("{line:>8} {word} padding padding padding {salt}\n"))
            .collect(),
        Size::TenMegabytes => {
            format!("{word} {salt} 0123456789abcdef\n").repeat(10_000_000 / (word.len() + 26))
        }
    }
}

fn size() -> impl Strategy<Value = Size> {
    prop_oneof![
        2 => Just(Size::Empty),
        20 => any::<u8>().prop_map(Size::Line),
        20 => (1_u16..60).prop_map(Size::Page),
        4 => (200_u16..3000).prop_map(Size::Huge),
    ]
}

fn call() -> impl Strategy<Value = CallOp> {
    let arrives = prop_oneof![
        20 => Just(Arrival::InTime),
        4 => Just(Arrival::First),
        2 => Just(Arrival::Interrupted),
        2 => Just(Arrival::Late),
        2 => Just(Arrival::Never),
    ];
    let output = prop_oneof![400 => size(), 1 => Just(Size::TenMegabytes)];
    (size(), output, arrives, prop::bool::weighted(0.2), prop::bool::weighted(0.05)).prop_map(
        |(argument, output, arrives, is_error, has_image)| CallOp {
            argument,
            output,
            arrives,
            is_error,
            has_image,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        60 => (size(), prop::bool::weighted(0.2), prop::collection::vec(call(), 0..4))
            .prop_map(|(text, reasoning, calls)| Op::Answer { text, reasoning, calls }),
        6 => size().prop_map(|size| Op::User { size }),
        3 => size().prop_map(|size| Op::Plan { size }),
        3 => (0_u8..4, size()).prop_map(|(name, size)| Op::Note { name, size }),
        2 => size().prop_map(|size| Op::Map { size }),
        1 => (700_u32..1600).prop_map(|thousandths| Op::Correction { thousandths }),
        1 => prop::option::of(3_000_u32..40_000).prop_map(|limit| Op::Tighten { limit }),
        1 => (20_000_u32..120_000, 0_u8..15).prop_map(|(budget, share)| Op::Window { budget, share }),
        1 => Just(Op::OrphanResult),
    ]
}

/// A log of up to `most` operations, with gaps in its ids.
pub(crate) fn log(most: usize) -> impl Strategy<Value = Vec<Entry>> {
    prop::collection::vec(op(), 1..most).prop_map(|ops| expand(&ops))
}

#[derive(Default)]
struct Writer {
    entries: Vec<Entry>,
    next: u64,
}

impl Writer {
    fn push(&mut self, body: EntryBody) {
        // Other events of the job also use ids.
        self.next += 1 + self.next % 3 / 2;
        let id = EventId(self.next);
        self.entries.push(Entry::new(id, 1_700_000_000_000 + self.next as i64 * 1000, body));
    }

    fn result(&mut self, id: &str, call: &CallOp, salt: u64) {
        let images = if call.has_image {
            vec![Image { media_type: "image/png".into(), digest: "ab".repeat(32), tokens: 1_500 }]
        } else {
            Vec::new()
        };
        self.push(EntryBody::Result(CallResult {
            call: id.to_owned(),
            text: text(call.output, salt),
            is_error: call.is_error,
            exit_code: Some(i32::from(call.is_error)),
            images,
            blob: None,
        }));
    }
}

/// Turns operations into a log.
pub(crate) fn expand(ops: &[Op]) -> Vec<Entry> {
    let mut writer = Writer::default();
    writer
        .push(EntryBody::User { text: "TASK: make the tests of the parser pass".into(), images: Vec::new() });
    let mut late: Vec<(String, CallOp, u64)> = Vec::new();
    for (number, op) in ops.iter().enumerate() {
        let salt = number as u64;
        match op {
            Op::User { size } => {
                writer.push(EntryBody::User { text: text(*size, salt), images: Vec::new() });
            }
            Op::Answer { text: said, reasoning, calls } => {
                let asked = calls.iter().enumerate().map(|(at, call)| Call {
                    id: format!("call-{number}-{at}"),
                    name: ["bash", "read_file", "write_file"][at % 3].into(),
                    arguments: json!({ "command": text(call.argument, salt + at as u64), "path": format!("src/{at}.rs") }),
                });
                writer.push(EntryBody::Assistant {
                    reasoning: if *reasoning {
                        vec![json!({ "type": "thinking", "text": text(*said, salt) })]
                    } else {
                        Vec::new()
                    },
                    text: text(*said, salt),
                    calls: asked.collect(),
                });
                for (id, call, salt) in std::mem::take(&mut late) {
                    writer.result(&id, &call, salt);
                }
                let id = |at: usize| format!("call-{number}-{at}");
                let order = |arrives: Arrival| match arrives {
                    Arrival::First => 0,
                    Arrival::InTime => 1,
                    Arrival::Interrupted => 2,
                    Arrival::Late | Arrival::Never => 3,
                };
                let mut arrivals: Vec<usize> = (0..calls.len()).collect();
                arrivals.sort_by_key(|at| order(calls[*at].arrives));
                for at in arrivals {
                    match calls[at].arrives {
                        Arrival::Never => {}
                        Arrival::Late => late.push((id(at), calls[at].clone(), salt)),
                        Arrival::Interrupted => {
                            writer.push(EntryBody::User { text: format!("stop {salt}"), images: Vec::new() });
                            writer.result(&id(at), &calls[at], salt);
                        }
                        Arrival::InTime | Arrival::First => writer.result(&id(at), &calls[at], salt),
                    }
                }
            }
            Op::Plan { size } => writer.push(EntryBody::Plan { text: text(*size, salt) }),
            Op::Note { name, size } => {
                writer.push(EntryBody::Note { name: format!("note-{name}"), text: text(*size, salt) });
            }
            Op::Map { size } => writer.push(EntryBody::Map { text: text(*size, salt) }),
            Op::Correction { thousandths } => {
                writer.push(EntryBody::Correction { factor: Factor::from_thousandths(*thousandths) });
            }
            Op::Tighten { limit } => writer.push(EntryBody::Tighten { limit_tokens: *limit }),
            Op::Window { budget, share } => writer.push(EntryBody::Window(Window {
                model: format!("model-{}", salt % 2),
                budget_tokens: *budget,
                system_tokens: budget / 100 * u32::from(*share),
                tools_tokens: budget / 50,
                ..Window::default()
            })),
            Op::OrphanResult => writer.push(EntryBody::Result(CallResult {
                call: format!("stray-{number}"),
                text: "who asked?".into(),
                ..CallResult::default()
            })),
        }
    }
    writer.entries
}
