//! Forks children if they run under the guest's own user ID.
//!
//! One thread enters a Landlock domain at startup and forks all children. The children share its domain, so one call
//! can signal processes of another call. The rest of the guest is outside the domain, so no child can signal or trace
//! it.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::mpsc;

use rustix::process::Pid;

use crate::error::GuestError;
use crate::landlock_only::LandlockOnly;
use crate::sys::{self, ChildPlan};
use crate::{landlock, seccomp};

/// A small stack is enough, because forking does not recurse.
const STACK_BYTES: usize = 128 * 1024;

struct ForkRequest {
    plan: ChildPlan,
    stdio: [RawFd; 3],
    report: RawFd,
    answer: mpsc::SyncSender<io::Result<Pid>>,
}

/// Forks children.
pub(crate) enum Forker {
    /// On the calling thread, because children get a different user ID.
    OnCallingThread,
    /// On the thread inside the Landlock domain.
    OnForkThread(ForkThread),
}

/// A handle of the thread inside the Landlock domain.
pub(crate) struct ForkThread(mpsc::Sender<ForkRequest>);

impl Forker {
    /// Starts the thread. Without Landlock support in the kernel, there is no domain; isolation then relies on the
    /// user namespace and on the guest being PID 1.
    pub(crate) fn start_fork_thread() -> Result<Self, GuestError> {
        let (fork_thread, entered) = start(sys::enter_signal_domain)?;
        if let Err(error) = entered {
            eprintln!("caisson-guest: no Landlock domain for what runs here: {error}");
        }
        Ok(Self::OnForkThread(fork_thread))
    }

    /// Starts the thread for a sandbox without namespaces. Fails without Landlock, because nothing may run outside
    /// its domain. Also returns the seccomp listener that reports `connect` calls.
    pub(crate) fn landlock_only_forker(landlock_only: &LandlockOnly) -> Result<(Self, OwnedFd), GuestError> {
        let landlock_only = landlock_only.clone();
        let (fork_thread, entered) = start(move || {
            landlock::enter(&landlock_only)?;
            seccomp::notify_on_connect()
        })?;
        let notifications = entered.map_err(GuestError::io("shutting in what runs here"))?;
        Ok((Self::OnForkThread(fork_thread), notifications))
    }

    /// Forks a child. The caller must keep the descriptors open until this returns.
    pub(crate) fn fork(&self, plan: ChildPlan, stdio: [RawFd; 3], report: RawFd) -> io::Result<Pid> {
        match self {
            Self::OnCallingThread => sys::fork_and_exec(&plan, stdio, report),
            Self::OnForkThread(ForkThread(requests)) => {
                let gone = || io::Error::other("the guest's thread that forks is gone");
                let (answer, answered) = mpsc::sync_channel(1);
                requests.send(ForkRequest { plan, stdio, report, answer }).map_err(|_| gone())?;
                answered.recv().map_err(|_| gone())?
            }
        }
    }
}

/// Starts the thread, which runs `prepare` first.
fn start<T: Send + 'static>(
    prepare: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<(ForkThread, io::Result<T>), GuestError> {
    let (sender, requests) = mpsc::channel::<ForkRequest>();
    let (ready, is_ready) = mpsc::sync_channel(1);
    let body = move || {
        let _ = ready.send(prepare());
        for request in requests {
            let _ = request.answer.send(sys::fork_and_exec(&request.plan, request.stdio, request.report));
        }
    };
    let spawned = std::thread::Builder::new().name("forks".into()).stack_size(STACK_BYTES).spawn(body);
    spawned.map_err(GuestError::io("starting the thread that forks"))?;
    let prepared = is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("the thread is gone")));
    Ok((ForkThread(sender), prepared))
}
