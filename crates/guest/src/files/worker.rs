//! The threads that access files.
//!
//! They run with the agent's filesystem IDs, so that the kernel checks every access as if the agent made it. One
//! thread does short work. Another does the steps of long streams; steps are small, so that streams take turns. A
//! third communicates with the X server and is started on first use.

use std::cell::OnceCell;
use std::io;

use protocol::{FileError, FileErrorCode};
use tokio::sync::{mpsc, oneshot};

use crate::error::GuestError;
use crate::files::errors::refusal;
use crate::sys::{self, Agent};

/// How much work may wait for a thread. The streams wait with further work.
const QUEUE_LENGTH: usize = 32;
/// A small stack is enough, because nothing here recurses.
const STACK_BYTES: usize = 128 * 1024;

type Work = Box<dyn FnOnce() + Send>;

/// The worker threads.
pub(crate) struct Workers {
    short: mpsc::Sender<Work>,
    long: mpsc::Sender<Work>,
    display: OnceCell<mpsc::Sender<Work>>,
    agent: Option<Agent>,
}

impl Workers {
    /// Starts the threads that every sandbox needs.
    pub(crate) fn start(agent: Option<Agent>) -> Result<Self, GuestError> {
        // Start both before waiting for either.
        let (short, long) = (Starting::begin("files", agent)?, Starting::begin("streams", agent)?);
        let workers = Self { short: short.end()?, long: long.end()?, display: OnceCell::new(), agent };
        sys::forbid_ptrace();
        Ok(workers)
    }

    /// Runs a short file operation.
    pub(crate) async fn short<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, FileError> {
        run(&self.short, work).await
    }

    /// Runs work on the X connection. The X server may block this thread, which does nothing else.
    pub(crate) async fn display<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, FileError> {
        run(self.display_thread()?, work).await
    }

    fn display_thread(&self) -> Result<&mpsc::Sender<Work>, FileError> {
        if let Some(thread) = self.display.get() {
            return Ok(thread);
        }
        let started = Starting::begin("display", self.agent)
            .and_then(Starting::end)
            .map_err(|error| refusal(FileErrorCode::Other, format!("no thread for the desktop: {error}")))?;
        sys::forbid_ptrace();
        Ok(self.display.get_or_init(|| started))
    }

    /// Runs one step of a long stream.
    pub(crate) async fn long<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, FileError> {
        run(&self.long, work).await
    }
}

async fn run<T: Send + 'static>(
    queue: &mpsc::Sender<Work>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FileError> {
    let (sender, receiver) = oneshot::channel();
    let work = Box::new(move || drop(sender.send(work())));
    let gone = || refusal(FileErrorCode::Other, "the guest's file thread is gone");
    queue.send(work).await.map_err(|_| gone())?;
    receiver.await.map_err(|_| gone())
}

/// A starting thread, which first takes the agent's filesystem IDs.
struct Starting {
    name: &'static str,
    queue: mpsc::Sender<Work>,
    has_ids: std::sync::mpsc::Receiver<io::Result<()>>,
}

impl Starting {
    fn begin(name: &'static str, agent: Option<Agent>) -> Result<Self, GuestError> {
        let (queue, mut works) = mpsc::channel::<Work>(QUEUE_LENGTH);
        let (tell, has_ids) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let _ = tell.send(agent.map_or(Ok(()), sys::set_file_ids));
            while let Some(work) = works.blocking_recv() {
                work();
            }
        };
        let spawned = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body);
        spawned.map_err(GuestError::io(format!("starting the thread for {name}")))?;
        Ok(Self { name, queue, has_ids })
    }

    fn end(self) -> Result<mpsc::Sender<Work>, GuestError> {
        let taken = self.has_ids.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        taken.map_err(GuestError::io(format!("taking the agent's file ids for {}", self.name)))?;
        Ok(self.queue)
    }
}
