//! The requests about calls, and those that concern several parts of the guest.
#![allow(clippy::result_large_err, reason = "a refusal is rare and is sent at once")]

use std::rc::Rc;

use protocol::{
    CallKey, Exec, ExecEvent, ExecOutcome, FileOperation, Follow, Incoming, MAX_SIGNAL, MessageStream,
    NotStarted, NotStartedCause, Program, ProtocolError, Reply, TerminalSize,
};

use crate::files::pack::PackRequest;
use crate::follow::follow;
use crate::guest::Guest;
use crate::input::InputRefusal;
use crate::journal::{Call, Phase, ProcessCall};
use crate::reply::send_reply;
use crate::{files, kernels, process, sys, terminal};

/// The most calls with a running process.
const MAX_RUNNING_CALLS: u32 = 512;

fn refused(message: impl Into<String>) -> Reply {
    Reply::Refused { message: message.into() }
}

/// Finds the process call with this key.
fn find(guest: &Guest, key: &CallKey) -> Result<Rc<ProcessCall>, Box<Reply>> {
    match guest.resources.journal.find(key) {
        Some(Call::Process(call)) => Ok(call),
        Some(Call::File(_)) => {
            Err(Box::new(refused(format!("call {key} is a file operation, not a process"))))
        }
        Some(Call::Gui(_)) => {
            Err(Box::new(refused(format!("call {key} is an action on the desktop, not a process"))))
        }
        None => Err(Box::new(refused(format!("call {key} is unknown")))),
    }
}

/// The process ID of a call whose program is running.
fn running_pid(call: &ProcessCall) -> Result<i32, Box<Reply>> {
    match &*call.phase.borrow() {
        Phase::Running { pid } => Ok(*pid),
        Phase::Starting => Err(Box::new(refused(format!("call {} is only just starting", call.exec.key)))),
        Phase::Ended { .. } => Err(Box::new(refused(format!("call {} has ended", call.exec.key)))),
    }
}

/// Starts a call, or follows it if its key is known.
pub(crate) async fn exec(
    guest: &Rc<Guest>,
    mut stream: MessageStream,
    exec: Exec,
    wanted: Follow,
) -> Result<(), ProtocolError> {
    let call = match guest.resources.journal.find(&exec.key) {
        Some(Call::Process(call)) => call,
        Some(Call::File(_) | Call::Gui(_)) => {
            let message = format!("the key {} belongs to something that is no process", exec.key);
            return send_reply(&mut stream, &refused(message)).await;
        }
        None if guest.resources.journal.running().get() >= MAX_RUNNING_CALLS => {
            let outcome = not_started(format!("{MAX_RUNNING_CALLS} calls are already running"));
            stream.send(&ExecEvent::Ended(outcome)).await?;
            return stream.close().await;
        }
        None => start(guest, exec),
    };
    follow(&mut stream, call, 0, wanted).await?;
    stream.close().await
}

/// Starts a call whose key is new.
fn start(guest: &Guest, exec: Exec) -> Rc<ProcessCall> {
    match &exec.program {
        Program::Cell(cell) => {
            let cell = cell.clone();
            kernels::cell::start(&guest.kernels, exec, &cell)
        }
        Program::Shell(_) | Program::Arguments(_) => process::start(&guest.resources, exec),
    }
}

fn not_started(why: String) -> ExecOutcome {
    ExecOutcome {
        end: protocol::ExecEnd::NotStarted(NotStarted::new(NotStartedCause::Other, why)),
        duration_ms: 0,
        output_bytes: 0,
        output_lines: 0,
        dropped_bytes: 0,
        next_sequence: 0,
        disk_free_bytes: 0,
        disk_free_inodes: 0,
        note: None,
        kernel: None,
    }
}

pub(crate) async fn resume(
    guest: &Guest,
    mut stream: MessageStream,
    key: &CallKey,
    from_sequence: u64,
    wanted: Follow,
) -> Result<(), ProtocolError> {
    match find(guest, key) {
        Ok(call) => {
            follow(&mut stream, call, from_sequence, wanted).await?;
            stream.close().await
        }
        Err(reply) => send_reply(&mut stream, &reply).await,
    }
}

/// Copies standard input from a stream to a call.
pub(crate) async fn input(
    guest: &Guest,
    mut stream: MessageStream,
    key: &CallKey,
) -> Result<(), ProtocolError> {
    let call = match find(guest, key) {
        Ok(call) => call,
        Err(reply) => return send_reply(&mut stream, &reply).await,
    };
    let mut phases = call.phase.subscribe();
    let has_ended = async { drop(phases.wait_for(|phase| phase.outcome().is_some()).await) };
    let copied = tokio::select! {
        biased;
        () = has_ended => None,
        copied = copy_input(&mut stream, &call) => Some(copied?),
    };
    let reply = match copied {
        Some(Ok(())) => Reply::Done,
        Some(Err(InputRefusal::Closed)) => refused(format!("the input of call {key} is closed")),
        Some(Err(InputRefusal::Gone)) => refused(format!("call {key} reads its input no more")),
        None => {
            call.input.abandon();
            refused(format!("call {key} has ended"))
        }
    };
    send_reply(&mut stream, &reply).await
}

async fn copy_input(
    stream: &mut MessageStream,
    call: &ProcessCall,
) -> Result<Result<(), InputRefusal>, ProtocolError> {
    loop {
        match stream.receive().await? {
            Incoming::Data(bytes) => {
                if let Err(refusal) = call.input.write(&bytes).await {
                    return Ok(Err(refusal));
                }
            }
            Incoming::DataEnd => {
                call.input.close().await;
                return Ok(Ok(()));
            }
            // The client left without closing the input. Another client may continue to write.
            Incoming::Closed => return Ok(Ok(())),
            _ => return Err(ProtocolError::Unexpected("something else where input was expected".into())),
        }
    }
}

/// Sends a signal to the call's process group.
pub(crate) fn signal(guest: &Guest, key: &CallKey, signal: i32) -> Reply {
    if !(1..=MAX_SIGNAL).contains(&signal) {
        return refused(format!("{signal} is not the number of a signal"));
    }
    let pid = match find(guest, key).and_then(|call| running_pid(&call)) {
        Ok(pid) => pid,
        Err(reply) => return *reply,
    };
    match sys::signal_group(pid, signal) {
        Ok(()) => Reply::Done,
        Err(error) => refused(format!("signal {signal} could not be sent to call {key}: {error}")),
    }
}

/// Ends a call with all its processes. Returns when the call has ended.
pub(crate) async fn kill(guest: &Guest, key: &CallKey) -> Reply {
    let call = match find(guest, key) {
        Ok(call) => call,
        Err(reply) => return *reply,
    };
    call.kill_requested.send_replace(true);
    let _ = call.phase.subscribe().wait_for(|phase| phase.outcome().is_some()).await;
    Reply::Done
}

/// Resizes a call's terminal.
pub(crate) fn resize(guest: &Guest, key: &CallKey, size: TerminalSize) -> Reply {
    let call = match find(guest, key) {
        Ok(call) => call,
        Err(reply) => return *reply,
    };
    let master = call.terminal.borrow().clone();
    match master {
        None => refused(format!("call {key} has no terminal, or has ended")),
        Some(master) => match terminal::resize(master.get_ref(), size) {
            Ok(()) => Reply::Done,
            Err(error) => refused(format!("the terminal of call {key} could not be resized: {error}")),
        },
    }
}

/// Drops a call's output. Keeps its key and result.
pub(crate) fn forget(guest: &Guest, key: &CallKey) -> Reply {
    match guest.resources.journal.find(key) {
        None => refused(format!("call {key} is unknown")),
        Some(Call::File(_)) => Reply::Done,
        Some(Call::Gui(call)) => {
            call.forget();
            Reply::Done
        }
        Some(Call::Process(call)) if call.phase.borrow().outcome().is_none() => {
            refused(format!("call {key} still runs"))
        }
        Some(Call::Process(call)) => {
            call.store.borrow_mut().forget();
            Reply::Done
        }
    }
}

/// Performs a file operation. With a key, it is performed only once, and it completes even if the link breaks.
pub(crate) async fn file(guest: &Rc<Guest>, key: Option<CallKey>, operation: FileOperation) -> Reply {
    let Some(key) = key else {
        return Reply::File(files::operate(&guest.resources.files, operation).await);
    };
    let call = match guest.resources.journal.find(&key) {
        Some(Call::File(call)) => call,
        Some(Call::Process(_) | Call::Gui(_)) => {
            return refused(format!("the key {key} belongs to something else"));
        }
        None => {
            let call = guest.resources.journal.add_file_call(&key, &operation);
            let (guest, doing) = (Rc::clone(guest), Rc::clone(&call));
            tokio::task::spawn_local(async move {
                doing.finish(&files::operate(&guest.resources.files, operation).await);
            });
            call
        }
    };
    Reply::File(call.result().await)
}

/// Streams a directory out of the sandbox. Pauses the recording of the desktop meanwhile. Otherwise the archive could
/// contain a file cut off in the middle of a frame.
pub(crate) async fn pack(
    guest: &Guest,
    stream: MessageStream,
    order: PackRequest,
) -> Result<(), ProtocolError> {
    let recorder = guest.desktop.recorder();
    let _still = match &recorder {
        Some(recorder) => Some(recorder.hold(&guest.desktop).await),
        None => None,
    };
    files::stream::pack(&guest.resources.files, stream, order).await
}
