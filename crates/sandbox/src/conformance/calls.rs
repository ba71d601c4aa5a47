//! How calls end.

use protocol::{ExecEvent, ExecUpdate, Follow};

use super::{Guest, Subject, exec_of, make, remove, spec_for};

/// A daemon has a session of its own, and no process of the call as an ancestor.
pub async fn killing_a_call_ends_its_daemons(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let guest = Guest::of(subject.backend(), id).await;
    // Each process waits in `open` for a writer of the pipe, so that neither forks nor executes another program.
    let script =
        "mkfifo pipe; (setsid sh -c 'echo daemon; read -r line < pipe' &); echo main; read -r line < pipe";
    let exec = exec_of(&["sh", "-c", script], None);
    let key = exec.key.clone();
    let processes = format!("grep -slzxF CAISSON_CALL={key} /proc/[0-9]*/environ | wc -l");
    let mut follower = guest.client.exec(exec, Follow::Live).await.expect("starting a command");
    let mut printed = String::new();
    while !["daemon", "main"].iter().all(|word| printed.contains(word)) {
        match follower.next().await.expect("following a command") {
            ExecUpdate::Output(chunk) => printed.push_str(&String::from_utf8_lossy(&chunk.bytes)),
            ExecUpdate::Event(ExecEvent::Ended(outcome)) => panic!("ended too early: {outcome:?}"),
            ExecUpdate::Event(_) => {}
        }
    }
    assert_eq!(guest.expect(&processes).await, "2");
    guest.client.kill(key).await.expect("killing the call");
    assert_eq!(guest.expect(&processes).await, "0");
    remove(subject, id).await;
}
