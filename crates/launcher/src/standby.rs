//! A launcher that stands ready. For each order it forks, and the new process becomes the owner of one sandbox: that takes a
//! quarter of the time that a program needs to start.

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

/// Its argument.
pub const STAND_BY: &str = "--stand-by";
/// A second argument of so many blanks: there an owner shows the path of its launch file.
pub const TITLE_BYTES: usize = 512;

/// Where orders are given. The launcher ends when this is gone; the owners that it has made stay.
pub struct Orders(Channel);

impl Orders {
    /// A new one, and what the launcher must have as its standard input.
    ///
    /// # Errors
    /// The host gives no sockets.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = channel::pair()?;
        Ok((Self(ours), theirs.into()))
    }

    /// Has the sandbox of a launch file made. The one line of its owner goes to `answer`. What is lent comes along: the
    /// network, where the file says so.
    ///
    /// # Errors
    /// The launcher is gone, or the path is too long.
    pub fn give(&self, file: &Path, answer: BorrowedFd<'_>, lent: &[BorrowedFd<'_>]) -> io::Result<()> {
        let path = file.as_os_str().as_bytes();
        if path.len() > MAX_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long"));
        }
        let descriptors: Vec<_> = [answer].iter().chain(lent).copied().collect();
        self.0.send(path, &descriptors)
    }
}

/// Takes orders from standard input until nobody can give any more. `name` is the program's name as it was started.
///
/// # Errors
/// The host refuses what every launcher needs.
pub fn stand_by(name: &OsStr) -> Result<(), LaunchError> {
    // A session of its own: signals to the server's terminal do not come here.
    let _ = rustix::process::setsid();
    let arguments = sys::OwnArguments::after(name.as_bytes());
    let null = owner::keep_numbers_free().named("opening /dev/null")?;
    let orders = io::stdin().as_fd().try_clone_to_owned().named("opening standard input")?;
    sys::place_descriptor(&null, 0).named("closing standard input")?;
    sys::set_collection(sys::Collection::ByKernel).named("leaving ended owners to the kernel")?;
    let orders = Channel::from(orders);
    loop {
        let (path, descriptors) = match orders.receive() {
            // Nothing came, or not all of it: who ordered sees that nobody answers.
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

/// The life of an owner, in a process of its own.
fn own(file: &Path, null: BorrowedFd<'_>, answer: OwnedFd, lent: Vec<OwnedFd>) -> ! {
    let run = || {
        // A session for each: what one sandbox sends to its process group must not come to another.
        let _ = rustix::process::setsid();
        sys::place_descriptor(&answer, 1).named("opening standard output")?;
        // Whoever reads it waits for the end of the last copy.
        drop(answer);
        sys::set_collection(sys::Collection::ByParent).named("waiting for own processes")?;
        owner::run(file, null, lent)
    };
    let result = run();
    if let Err(error) = &result {
        owner::fail(error);
    }
    std::process::exit(i32::from(result.is_err()))
}

fn refuse(answer: &OwnedFd, error: &LaunchError) {
    let line = serde_json::to_vec(&Report::from(error)).unwrap_or_default();
    // Whoever ordered may be gone.
    let _ = rustix::io::write(answer, &line);
}
