//! A background thread for work that nobody waits for. Spawning a thread for each small task would cost more than the
//! task.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};

type Work = Box<dyn FnOnce() + Send>;

/// Runs queued work in order on one thread. The thread starts with the first task and ends when the last clone is
/// dropped. Clones share the thread.
#[derive(Clone)]
pub(crate) struct Background {
    name: &'static str,
    thread: Arc<Mutex<Option<Sender<Work>>>>,
}

impl Background {
    /// Does not start the thread yet. `name` is the thread name.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, thread: Arc::default() }
    }

    /// Queues `work` behind everything queued before. `work` must not panic.
    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let work: Work = Box::new(work);
        // Sending fails only if earlier work panicked and took the thread down.
        let unsent = match thread.as_ref() {
            Some(sender) => sender.send(work).err().map(|error| error.0),
            None => Some(work),
        };
        let Some(work) = unsent else { return };
        let (sender, receiver) = mpsc::channel::<Work>();
        let started = std::thread::Builder::new()
            .name(self.name.into())
            .spawn(move || receiver.into_iter().for_each(|work| work()));
        match started {
            Ok(_) => {
                let _ = sender.send(work);
                *thread = Some(sender);
            }
            Err(error) => tracing::warn!(%error, name = self.name, "cannot start a background thread"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_in_order_and_after_a_panic() {
        let background = Background::new("test");
        let (sender, receiver) = mpsc::channel();
        for number in 0..3 {
            let sender = sender.clone();
            background.run(move || sender.send((number, std::thread::current().id())).unwrap());
        }
        let done: Vec<_> = receiver.iter().take(3).collect();
        assert_eq!(done.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(done.iter().all(|(_, thread)| *thread == done[0].1), "one thread does them all");
        background.run(|| panic!("on purpose"));
        // The thread is terminating. Work queued until then is lost; work queued afterwards starts a new thread.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let sender = sender.clone();
            background.run(move || sender.send((3, std::thread::current().id())).unwrap());
            if receiver.recv_timeout(std::time::Duration::from_millis(50)).is_ok() {
                break;
            }
            assert!(std::time::Instant::now() < end, "nothing is done any more");
        }
    }
}
