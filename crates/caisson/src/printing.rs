//! Prints on a thread of its own: a reader that takes its time, such as `less`, must not keep us from the connection.

use std::io::{self, Write};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// How many pieces wait for the reader.
const WAITING: usize = 16;

/// Something to print.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// On standard output.
    Output(Bytes),
    /// On standard error.
    Error(Bytes),
}

/// Starts it. What is sent is printed in its order; the answer comes when there is no more, or when something could not be printed,
/// after which nothing more is taken.
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
        // Nobody may wait for it.
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
