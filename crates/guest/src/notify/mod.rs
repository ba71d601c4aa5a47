//! Questions of the kernel about system calls of what runs here (seccomp's user notification).

mod sys;

pub(crate) use sys::{Question, ask_before_connecting, receive, replace, reply};
