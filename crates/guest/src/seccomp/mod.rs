//! Notifications of system calls by processes in the sandbox (seccomp user notification).

mod sys;

pub(crate) use sys::{ConnectNotification, notify_on_connect, receive, replace, reply};
