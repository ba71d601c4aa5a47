//! Notifications of system calls by processes in the sandbox (seccomp user notification).

mod sys;

pub(crate) use sys::{Question, ask_before_connecting, receive, replace, reply};
