//! The one place that waits for processes: children of calls and orphans that the kernel hands to the guest.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// Hands out the end of each child.
#[derive(Clone, Default)]
pub(crate) struct Reaper {
    children: Rc<RefCell<HashMap<Pid, oneshot::Sender<WaitStatus>>>>,
}

impl Reaper {
    /// The end of a child. Must be called before anything is awaited after the fork, so that no end is missed.
    pub(crate) fn expect(&self, pid: Pid) -> oneshot::Receiver<WaitStatus> {
        let (sender, receiver) = oneshot::channel();
        self.children.borrow_mut().insert(pid, sender);
        receiver
    }

    /// Reaps for ever.
    pub(crate) async fn run(self, signals: AsyncFd<OwnedFd>) {
        loop {
            self.reap();
            let Ok(mut guard) = signals.readable().await else { return };
            let mut record = [0u8; 128 * 4];
            // The records are not looked at: signals of several children may have been merged into one.
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
