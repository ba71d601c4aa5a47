//! The only place that waits for processes: children of calls, and orphans that the guest adopts as PID 1.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// Delivers the exit status of each child.
#[derive(Clone, Default)]
pub(crate) struct Reaper {
    children: Rc<RefCell<HashMap<Pid, oneshot::Sender<WaitStatus>>>>,
}

impl Reaper {
    /// Returns a receiver for the exit status of a child. Call it after the fork, before any await, so that no exit
    /// is missed.
    pub(crate) fn expect(&self, pid: Pid) -> oneshot::Receiver<WaitStatus> {
        let (sender, receiver) = oneshot::channel();
        self.children.borrow_mut().insert(pid, sender);
        receiver
    }

    /// Reaps children until the guest exits.
    pub(crate) async fn run(self, signals: AsyncFd<OwnedFd>) {
        loop {
            self.reap();
            let Ok(mut guard) = signals.readable().await else { return };
            let mut record = [0u8; 128 * 4];
            // The content is irrelevant: signals of several children may have been merged into one.
            if guard.try_io(|fd| Ok(rustix::io::read(fd, &mut record)?)).is_err() {
                continue;
            }
        }
    }

    fn reap(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(sender) = self.children.borrow_mut().remove(&pid) {
                let _ = sender.send(status);
            }
        }
    }
}
