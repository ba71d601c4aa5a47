//! A resident launcher. It forks for each request, and the new process becomes the owner of one sandbox. Forking
//! takes a quarter of the time of starting a program.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::channel::{self, Channel, MAX_BYTES};
use crate::error::{LaunchError, Step};
use crate::owner;
use crate::spec::Report;
use crate::sys;

/// The command-line argument that selects this mode.
pub const STAND_BY: &str = "--stand-by";
/// A second argument of this many blanks reserves room in which an owner shows the path of its launch file.
pub const TITLE_BYTES: usize = 512;

/// The sending end for launch requests. The launcher exits when this is dropped; the owners that it has created stay.
pub struct LaunchRequests(Channel);

impl LaunchRequests {
    /// Creates a channel. The second value must become the launcher's standard input.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = channel::pair()?;
        Ok((Self(ours), theirs.into()))
    }

    /// Requests the sandbox of a launch file. Its owner writes one line to `answer`. `passed_fds` carries the network
    /// namespace, if the launch file asks for it.
    ///
    /// # Errors
    /// The launcher is gone, or the path is too long.
    pub fn give(&self, file: &Path, answer: BorrowedFd<'_>, passed_fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let path = file.as_os_str().as_bytes();
        if path.len() > MAX_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long"));
        }
        let descriptors: Vec<_> = [answer].iter().chain(passed_fds).copied().collect();
        self.0.send(path, &descriptors)
    }
}

/// Handles requests from standard input until the sending end is closed. `name` is the program name as it was
/// started.
pub fn stand_by(name: &OsStr) -> Result<(), LaunchError> {
    // Its own session: signals to the server's terminal do not arrive here.
    let _ = rustix::process::setsid();
    let arguments = sys::ProcessTitle::after(name.as_bytes());
    let null = owner::reserve_guest_fds().named("opening /dev/null")?;
    let orders = io::stdin().as_fd().try_clone_to_owned().named("opening standard input")?;
    sys::place_descriptor(&null, 0).named("closing standard input")?;
    sys::set_child_reaping(sys::ChildReaping::ByKernel).named("leaving ended owners to the kernel")?;
    let orders = Channel::from(orders);
    loop {
        let (path, descriptors) = match orders.receive() {
            // Nothing arrived, or not all of it; the requester notices that nobody answers.
            Err(error) if error.kind() == io::ErrorKind::Interrupted || error.raw_os_error().is_none() => {
                continue;
            }
            other => other.named("waiting for an order")?,
        };
        if path.is_empty() {
            return Ok(());
        }
        let mut descriptors = descriptors.into_iter();
        let Some(answer) = descriptors.next() else { continue };
        match sys::fork() {
            Ok(Some(_)) => {}
            Ok(None) => {
                drop(orders);
                if let Some(arguments) = arguments {
                    arguments.show(&path);
                }
                own(Path::new(OsStr::from_bytes(&path)), null.as_fd(), answer, descriptors.collect())
            }
            Err(error) => refuse(&answer, &LaunchError::new("forking the launcher", error)),
        }
    }
}

/// The main function of an owner process.
fn own(file: &Path, null: BorrowedFd<'_>, answer: OwnedFd, passed_fds: Vec<OwnedFd>) -> ! {
    let run = || {
        // One session per owner: signals that one sandbox sends to its process group must not reach another.
        let _ = rustix::process::setsid();
        sys::place_descriptor(&answer, 1).named("opening standard output")?;
        // The reader waits until the last copy is closed.
        drop(answer);
        sys::set_child_reaping(sys::ChildReaping::ByParent).named("waiting for own processes")?;
        owner::run(file, null, passed_fds)
    };
    let result = run();
    if let Err(error) = &result {
        owner::fail(error);
    }
    std::process::exit(i32::from(result.is_err()))
}

fn refuse(answer: &OwnedFd, error: &LaunchError) {
    let line = serde_json::to_vec(&Report::from(error)).unwrap_or_default();
    // The requester may be gone.
    let _ = rustix::io::write(answer, &line);
}
