//! The wire format. An older guest must understand a newer host: a change here needs a new link version, unless it
//! only adds a field with a default.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use protocol::{
    CallKey, CallStatus, DesktopRequest, DesktopSpec, Endpoint, Exec, ExecEnd, ExecEvent, ExecOutcome,
    FileEntry, FileError, FileErrorCode, FileKind, FileOperation, FileReply, FileResult, FileStat, Follow,
    GuestRequest, GuestStats, GuiAction, GuiError, GuiErrorCode, GuiReply, GuiResult, Hello, ImageInfo,
    LinkCredentials, LinkRefusal, Modifier, MouseButton, NotStarted, NotStartedCause, Program, Readiness,
    Reply, Request, ServiceName, ServiceRequest, ServiceSpec, ServiceState, ServiceStatus, TerminalSize,
    Welcome, WindowChoice, WindowInfo,
};

fn key() -> CallKey {
    CallKey::new("step-1", 2)
}

fn stat() -> FileStat {
    FileStat { kind: FileKind::Symlink, size: 3, mode: 0o777, modified_ms: 1, link_target: Some("a".into()) }
}

fn outcome() -> ExecOutcome {
    ExecOutcome {
        end: ExecEnd::Code(1),
        duration_ms: 5,
        output_bytes: 10,
        output_lines: 1,
        dropped_bytes: 0,
        next_sequence: 1,
        disk_free_bytes: 100,
        disk_free_inodes: 10,
        note: None,
        kernel: None,
    }
}

#[test]
fn requests_keep_their_wire_format() {
    let exec = Exec {
        key: key(),
        program: Program::Shell("true".into()),
        environment: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
        directory: Some("/workspace".into()),
        stdin: Some("x".into()),
        keep_stdin_open: true,
        terminal: Some(TerminalSize { rows: 24, columns: 80 }),
        timeout_ms: Some(1000),
        kill_grace_ms: 2000,
    };
    let requests = [
        Request::Hello(Hello {
            newest_version: 1,
            oldest_version: 1,
            credentials: LinkCredentials::new("5ec7e7", 3),
        }),
        Request::Ping,
        Request::Exec { exec, follow: Follow::Capped },
        Request::Follow { key: key(), from_sequence: 7, follow: Follow::Live },
        Request::Follow { key: key(), from_sequence: 0, follow: Follow::Paced },
        Request::CallStatus { key: key() },
        Request::Input { key: key() },
        Request::Signal { key: key(), signal: 15 },
        Request::Kill { key: key() },
        Request::Resize { key: key(), size: TerminalSize { rows: 1, columns: 2 } },
        Request::Forget { key: key() },
        Request::File {
            key: Some(key()),
            operation: FileOperation::Write { path: "a".into(), content: "b".into(), mode: Some(0o644) },
        },
        Request::File {
            key: None,
            operation: FileOperation::List { path: String::new(), depth: 1, limit: 10, skip: Vec::new() },
        },
        Request::Download { path: "a".into(), offset: 1, length: None },
        Request::Upload { path: "a".into(), mode: None },
        Request::Pack { path: String::new(), exclude: vec!["x".into()], max_file_bytes: Some(9) },
        Request::Unpack { path: String::new() },
        Request::Watch { path: "d".into() },
        Request::Connect { port: 80 },
        Request::Stats,
        Request::Ports,
    ];
    insta::assert_json_snapshot!("requests", requests);
    insta::assert_json_snapshot!("guest_requests", [GuestRequest::Egress]);
}

#[test]
fn replies_keep_their_wire_format() {
    let error = FileError { code: FileErrorCode::NotFound, message: "there is no `a`".into() };
    let welcome =
        Welcome { newest_version: 1, oldest_version: 1, boot_id: "b".into(), build: "0.1.0".into() };
    let replies = [
        Reply::Welcome(welcome),
        Reply::Done,
        Reply::Call(CallStatus::Unknown),
        Reply::Call(CallStatus::Running { next_sequence: 3 }),
        Reply::Call(CallStatus::Ended(outcome())),
        Reply::Call(CallStatus::File(FileResult::Ok(FileReply::Done))),
        Reply::File(FileResult::Ok(FileReply::Stat(stat()))),
        Reply::File(FileResult::Ok(FileReply::Entries {
            entries: vec![FileEntry { path: "a".into(), stat: stat() }],
            truncated: false,
        })),
        Reply::File(FileResult::Ok(FileReply::Packed { left_out: vec!["pipe".into()] })),
        Reply::File(FileResult::Error(error)),
        Reply::Stats(GuestStats::default()),
        Reply::Ports { ports: vec![80] },
        Reply::Refused { message: "no".into() },
        Reply::LinkRefused(LinkRefusal::WrongSecret),
        Reply::LinkRefused(LinkRefusal::OlderGeneration { newest: 3 }),
    ];
    insta::assert_json_snapshot!("replies", replies);
    let events = [
        ExecEvent::Started { pid: 7 },
        ExecEvent::Gap { from_sequence: 1, to_sequence: 2, bytes: 3 },
        ExecEvent::Progress { bytes: 1, lines: 2 },
        ExecEvent::Ended(ExecOutcome {
            end: ExecEnd::NotStarted(NotStarted::new(NotStartedCause::BadDirectory, "why")),
            ..outcome()
        }),
    ];
    insta::assert_json_snapshot!("exec_events", events);
}

fn service() -> ServiceSpec {
    ServiceSpec {
        name: ServiceName::new("desktop").unwrap(),
        program: vec!["icewm".into()],
        environment: BTreeMap::from([("DISPLAY".to_owned(), ":1".to_owned())]),
        directory: Some("/workspace".into()),
        ready: Readiness::Accepts(Endpoint::Unix("/tmp/socket".into())),
        start_timeout_ms: 30_000,
        idle_ms: Some(600_000),
        requires: Vec::new(),
    }
}

#[test]
fn service_messages_keep_their_wire_format() {
    let name = service().name;
    let readiness =
        [Readiness::Started, Readiness::File("/tmp/ready".into()), Readiness::Printed("ready".into())];
    let orders = [
        ServiceRequest::Open { service: service(), endpoint: Endpoint::Port(8888) },
        ServiceRequest::Start { service: ServiceSpec { requires: vec![service()], ..service() } },
        ServiceRequest::Status,
        ServiceRequest::Stop { name: name.clone() },
        ServiceRequest::Restart { name: name.clone() },
        ServiceRequest::Log { name: name.clone() },
    ];
    let requests = orders.map(|order| Request::Service { order });
    let status = ServiceStatus {
        name,
        state: ServiceState::Restarting,
        pid: Some(7),
        users: 1,
        starts: 2,
        crashes: 1,
        message: Some("why".into()),
    };
    let replies = [Reply::Services { services: vec![status] }, Reply::ServiceLog { text: "line".into() }];
    insta::assert_json_snapshot!("service_readiness", readiness);
    insta::assert_json_snapshot!("service_requests", requests);
    insta::assert_json_snapshot!("service_replies", replies);
}

#[test]
fn desktop_messages_keep_their_wire_format() {
    let desktop = DesktopSpec {
        width: 1280,
        height: 800,
        environment: BTreeMap::from([("HOME".to_owned(), "/home/agent".to_owned())]),
        idle_ms: Some(600_000),
        recording: None,
    };
    let click = GuiAction::Click {
        x: Some(1),
        y: Some(2),
        button: MouseButton::Right,
        modifiers: vec![Modifier::Ctrl, Modifier::Super],
    };
    let actions = [
        GuiAction::Screenshot,
        click,
        GuiAction::Scroll { x: None, y: None, right: 0, down: -3 },
        GuiAction::Type { text: "ü".into() },
        GuiAction::Wait { seconds: Some(0.5), window: Some("Shell".into()) },
        GuiAction::Focus { window: WindowChoice::Number(7) },
        GuiAction::Close { window: WindowChoice::Title("Shell".into()) },
        GuiAction::Launch { command: "xterm".into() },
    ];
    let acts = actions.map(|action| DesktopRequest::Act { key: Some(key()), action });
    let orders = [DesktopRequest::Start, DesktopRequest::OpenVnc].into_iter().chain(acts);
    let requests: Vec<Request> =
        orders.map(|order| Request::Desktop { desktop: desktop.clone(), order }).collect();
    let window =
        WindowInfo { number: 7, title: "Shell".into(), x: 1, y: 2, width: 3, height: 4, is_active: true };
    let reply = GuiReply {
        windows: Some(vec![window.clone()]),
        window: Some(Box::new(window)),
        pid: Some(9),
        image: Some(ImageInfo { width: 1280, height: 800, bytes: 1000 }),
    };
    let error = GuiError { code: GuiErrorCode::BadInput, message: "off the screen".into() };
    let replies = [Reply::Gui(GuiResult::Ok(reply)), Reply::Gui(GuiResult::Error(error))];
    insta::assert_json_snapshot!("desktop_requests", requests);
    insta::assert_json_snapshot!("desktop_replies", replies);
    insta::assert_json_snapshot!("answered", [Reply::Call(CallStatus::Answered)]);
}
