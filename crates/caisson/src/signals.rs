//! Waits for the signals that stop a command.

use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for signals from its creation on. A signal that arrives between two waits is not lost, as it would be with a
/// new listener for each wait.
pub(crate) struct StopSignals(Vec<Signal>);

impl StopSignals {
    /// Ctrl-C.
    pub(crate) fn interrupt() -> Self {
        Self::listen(&[SignalKind::interrupt()])
    }

    /// Ctrl-C, SIGTERM and SIGHUP.
    pub(crate) fn termination_or_interrupt() -> Self {
        Self::listen(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()])
    }

    fn listen(kinds: &[SignalKind]) -> Self {
        Self(kinds.iter().filter_map(|kind| signal(*kind).ok()).collect())
    }

    /// Returns when one of the signals has arrived since the last return. Cancel safe.
    pub(crate) async fn recv(&mut self) {
        std::future::poll_fn(|context| {
            let has_arrived = self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if has_arrived { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

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
