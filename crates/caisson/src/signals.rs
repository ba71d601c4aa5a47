//! Waits for the signals that stop a command.

use tokio::signal::unix::{SignalKind, signal};

/// Returns on Ctrl-C.
pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns on Ctrl-C, SIGTERM and SIGHUP (sent when a terminal is closed): the signals that end a process without a
/// handler.
pub(crate) async fn termination_or_interrupt() {
    tokio::select! {
        () = interrupted() => {}
        _ = termination_signal() => {}
    }
}

/// Returns on SIGTERM and SIGHUP, with the signal's number.
pub(crate) async fn termination_signal() -> i32 {
    let (terminate, hangup) = (SignalKind::terminate(), SignalKind::hangup());
    let (Ok(mut first), Ok(mut second)) = (signal(terminate), signal(hangup)) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = first.recv() => terminate.as_raw_value(),
        _ = second.recv() => hangup.as_raw_value(),
    }
}
