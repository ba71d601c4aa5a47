//! The wire format of messages about kernels. The rule in `messages.rs` applies here too.

use std::collections::BTreeMap;

use protocol::{
    CallKey, Cell, CellError, Display, DisplayKind, Exec, ExecEnd, ExecEvent, ExecOutcome, Follow,
    KernelAction, KernelChoice, KernelRun, KernelState, KernelStatus, Program, Reply, Request,
};

fn ended(end: ExecEnd, note: Option<String>) -> ExecEvent {
    ExecEvent::Ended(ExecOutcome {
        end,
        duration_ms: 5,
        output_bytes: 10,
        output_lines: 1,
        dropped_bytes: 0,
        next_sequence: 1,
        disk_free_bytes: 100,
        disk_free_inodes: 10,
        note,
        kernel: None,
    })
}

fn ran_in_kernel() -> ExecEvent {
    let kernel = KernelRun { name: "python3".into(), language: "python".into(), life: 2, is_alive: true };
    match ended(ExecEnd::Code(0), None) {
        ExecEvent::Ended(outcome) => ExecEvent::Ended(ExecOutcome { kernel: Some(kernel), ..outcome }),
        other => other,
    }
}

#[test]
fn kernel_messages_keep_their_wire_format() {
    let exec = Exec {
        key: CallKey::new("step-1", 1),
        program: Program::Cell(Cell {
            kernel: KernelChoice::Language("python".into()),
            code: "1 + 1".into(),
            otherwise: Some(vec!["python3".into(), "-".into()]),
        }),
        environment: BTreeMap::new(),
        directory: None,
        stdin: None,
        keep_stdin_open: false,
        terminal: None,
        timeout_ms: None,
        kill_grace_ms: 2000,
    };
    let requests = [
        Request::Kernels,
        Request::Kernel { name: "python3".into(), action: KernelAction::Interrupt },
        Request::Exec { exec, follow: Follow::Capped },
    ];
    insta::assert_json_snapshot!("requests", requests);
    let kernel = KernelStatus {
        name: "python3".into(),
        display_name: "Python 3".into(),
        language: "python".into(),
        state: KernelState::Busy,
        cells: 2,
    };
    insta::assert_json_snapshot!("replies", [Reply::Kernels { kernels: vec![kernel] }]);
    let raised = ExecEnd::Raised { name: "ValueError".into(), message: "no".into() };
    let events = [
        ended(raised, Some("the kernel was restarted".into())),
        ended(ExecEnd::KernelDied("signal 9".into()), None),
        ran_in_kernel(),
    ];
    insta::assert_json_snapshot!("exec_events", events);
    let mut result = Display::new(DisplayKind::Result);
    result.data.insert("text/plain".into(), "2".into());
    result.execution_count = Some(1);
    let mut error = Display::new(DisplayKind::Error);
    error.error =
        Some(CellError { name: "ValueError".into(), message: "no".into(), traceback: vec!["line".into()] });
    insta::assert_json_snapshot!("displays", [result, error]);
}
