//! Prints on a separate thread, so that a slow reader such as `less` does not stall the connection.

use std::io::{self, Write};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// How many chunks may be queued.
const QUEUE_LENGTH: usize = 16;

/// Something to print.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// On standard output.
    Stdout(Bytes),
    /// On standard error.
    Stderr(Bytes),
}

/// Starts the thread. It prints chunks in order. The receiver resolves when the sender is dropped or printing fails;
/// after a failure no more chunks are accepted.
pub(crate) fn start() -> (mpsc::Sender<Chunk>, oneshot::Receiver<io::Result<()>>) {
    let (sender, mut chunks) = mpsc::channel(QUEUE_LENGTH);
    let (end, printed) = oneshot::channel();
    std::thread::spawn(move || {
        let mut print_all = || {
            while let Some(chunk) = chunks.blocking_recv() {
                print(&chunk)?;
            }
            Ok(())
        };
        let result = print_all();
        // The receiver may have been dropped.
        let _ = end.send(result);
    });
    (sender, printed)
}

fn print(chunk: &Chunk) -> io::Result<()> {
    let to = |out: &mut dyn Write, bytes: &[u8]| out.write_all(bytes).and_then(|()| out.flush());
    match chunk {
        Chunk::Stdout(bytes) => to(&mut io::stdout().lock(), bytes),
        Chunk::Stderr(bytes) => to(&mut io::stderr().lock(), bytes),
    }
}
