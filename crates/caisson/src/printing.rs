//! Prints on a separate thread, so that a slow reader such as `less` does not stall the connection.

use std::io::{self, Write};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// How many pieces may be queued.
const WAITING: usize = 16;

/// Something to print.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// On standard output.
    Output(Bytes),
    /// On standard error.
    Error(Bytes),
}

/// Starts the thread. It prints pieces in order. The receiver resolves when the sender is dropped or printing fails;
/// after a failure no more pieces are accepted.
pub(crate) fn start() -> (mpsc::Sender<Piece>, oneshot::Receiver<io::Result<()>>) {
    let (sender, mut pieces) = mpsc::channel(WAITING);
    let (end, printed) = oneshot::channel();
    std::thread::spawn(move || {
        let mut print_all = || {
            while let Some(piece) = pieces.blocking_recv() {
                print(&piece)?;
            }
            Ok(())
        };
        let result = print_all();
        // The receiver may have been dropped.
        let _ = end.send(result);
    });
    (sender, printed)
}

fn print(piece: &Piece) -> io::Result<()> {
    let to = |out: &mut dyn Write, bytes: &[u8]| out.write_all(bytes).and_then(|()| out.flush());
    match piece {
        Piece::Output(bytes) => to(&mut io::stdout().lock(), bytes),
        Piece::Error(bytes) => to(&mut io::stderr().lock(), bytes),
    }
}
