//! The threads that touch files.
//!
//! They have the agent's file ids, so that the kernel checks every access as the agent's own. One does short work, another
//! the steps of long streams; a step is small, so streams take turns. The third speaks to the X server, and is made when
//! there is one.

use std::cell::OnceCell;

use protocol::{FileError, FileErrorCode};
use tokio::sync::{mpsc, oneshot};

use crate::error::GuestError;
use crate::files::refusal::refusal;
use crate::sys::{self, Agent};

/// Work that waits for a thread; more waits in the streams that bring it.
const QUEUE_LENGTH: usize = 32;
/// Small: nothing here recurses.
const STACK_BYTES: usize = 128 * 1024;

type Work = Box<dyn FnOnce() + Send>;

/// All threads.
pub(crate) struct Workers {
    short: mpsc::Sender<Work>,
    long: mpsc::Sender<Work>,
    display: OnceCell<mpsc::Sender<Work>>,
    agent: Option<Agent>,
}

impl Workers {
    /// Makes the threads that every sandbox needs.
    pub(crate) fn start(agent: Option<Agent>) -> Result<Self, GuestError> {
        let workers = Self {
            short: start("files", agent)?,
            long: start("streams", agent)?,
            display: OnceCell::new(),
            agent,
        };
        sys::forbid_ptrace();
        Ok(workers)
    }

    /// Does one whole file operation.
    pub(crate) async fn short<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, FileError> {
        run(&self.short, work).await
    }

    /// Does something with the X server, which may keep it waiting: nobody else uses this thread.
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
        let started = start("display", self.agent)
            .map_err(|error| refusal(FileErrorCode::Other, format!("no thread for the desktop: {error}")))?;
        sys::forbid_ptrace();
        Ok(self.display.get_or_init(|| started))
    }

    /// Does a step of a long stream.
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

fn start(name: &str, agent: Option<Agent>) -> Result<mpsc::Sender<Work>, GuestError> {
    let (sender, mut queue) = mpsc::channel::<Work>(QUEUE_LENGTH);
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    let body = move || {
        let _ = ready.send(agent.map_or(Ok(()), sys::set_file_ids));
        while let Some(work) = queue.blocking_recv() {
            work();
        }
    };
    let spawned = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body);
    spawned.map_err(GuestError::io(format!("starting the thread for {name}")))?;
    let taken = is_ready.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::BrokenPipe.into()));
    taken.map_err(GuestError::io(format!("taking the agent's file ids for {name}")))?;
    Ok(sender)
}
