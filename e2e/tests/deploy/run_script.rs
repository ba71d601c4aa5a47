//! `./run` as root and as an ordinary user with sudo: twice, because the second start finds other things in place.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;

use crate::checkout::{Checkout, program};

/// A user id that no user of the host has.
const UID: u32 = 60_125;
/// Runs the program beside it after half a second during which its command line is different.
const SLOW_EXEC_WRAPPER: &str = r#"#!/bin/bash
export PROGRAM="$(dirname "$0")/../caisson" WORDS="$*"
[ "$1" = serve ] || exec "$PROGRAM" "$@"
exec -a loading bash -c 'sleep 0.5; exec "$PROGRAM" $WORDS'
"#;

#[track_caller]
fn starts_and_stops_twice(user: u32) {
    let checkout = Checkout::new(user);
    let url = format!("http://127.0.0.1:{}", checkout.port);
    checkout.expect(&["status"], 1, "not running");
    for _ in 0..2 {
        let said = checkout.expect(&["start"], 0, &format!("running on {url} (pid "));
        assert!(said.contains("default is up to date"), "the image was looked for elsewhere: {said}");
        assert!(
            said.contains("image: default is up to date"),
            "no image was built beside the compiler: {said}"
        );
        let pid = checkout.pid();
        checkout.expect(&["status"], 0, &format!("running: pid {pid}, {url}"));
        checkout.expect(&["start"], 0, &format!("already running on {url}"));
        assert_eq!(checkout.pid(), pid, "it was started anew");
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        assert!(environment.contains("no_proxy=kept.test"), "{environment}");
        let owner = fs::metadata(format!("/proc/{pid}")).unwrap().uid();
        assert_eq!(owner, 0, "the server is not root's");
        checkout.expect(&["stop"], 0, &format!("stopped (pid {pid})"));
        checkout.expect(&["status"], 1, "not running");
    }
    let data = fs::metadata(checkout.folder.path().join("data")).unwrap();
    assert_eq!((data.uid(), data.mode() & 0o777), (user, 0o700));
    checkout.expect(&["stop"], 0, "no server of ./run is running");
}

#[test]
fn run_script_starts_and_stops_a_server_twice_as_root() {
    starts_and_stops_twice(0);
}

#[test]
fn run_script_starts_and_stops_a_server_twice_with_sudo() {
    starts_and_stops_twice(UID);
}

#[test]
fn run_script_reports_why_a_server_cannot_start() {
    let checkout = Checkout::new(0);
    let taken = TcpListener::bind(("127.0.0.1", checkout.port)).unwrap();
    checkout.expect(&["start"], 1, "another program uses");
    drop(taken);
    fs::create_dir(checkout.folder.path().join("data/caisson.db")).unwrap();
    let said = checkout.expect(&["start"], 1, "the server has ended; its log is");
    assert!(said.contains("caisson.db"), "{said}");
    checkout.expect(&["restart"], 1, "unknown: restart (./run, ./run start, ./run stop, ./run status)");
}

/// While the kernel loads a large program, its command line cannot be read yet.
#[test]
fn run_script_waits_while_the_command_line_is_unreadable() {
    let checkout = Checkout::new(0);
    let elsewhere = checkout.folder.path().join("elsewhere");
    fs::rename(elsewhere.join("release/caisson"), elsewhere.join("caisson")).unwrap();
    program(&elsewhere.join("release/caisson"), SLOW_EXEC_WRAPPER);
    checkout.expect(&["start"], 0, "running on http://");
    checkout.expect(&["stop"], 0, "stopped (pid ");
}
