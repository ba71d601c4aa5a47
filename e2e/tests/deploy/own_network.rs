//! A network namespace for a test that needs the default ports: nothing else listens there, and nothing leads out.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs a closure in a new network namespace that has only loopback. Its threads and processes are in there, too.
pub(crate) fn in_own_network(run: impl FnOnce() + Send) {
    // A thread of its own, because a thread does not come back.
    let outcome = std::thread::scope(|scope| {
        let entered = scope.spawn(|| {
            enter_new_network();
            run();
        });
        entered.join()
    });
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn enter_new_network() {
    let mut holder = Command::new("unshare")
        .args(["--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare, of the package util-linux");
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "a network namespace cannot be made (as root, with `ip` of iproute2)");
    let namespace = File::open(format!("/proc/{}/ns/net", holder.id())).unwrap();
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    // From here on this thread keeps the namespace.
    drop(holder.stdin.take());
    holder.wait().unwrap();
}
