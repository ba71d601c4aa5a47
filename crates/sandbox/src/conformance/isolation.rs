//! What a sandbox cannot reach, and what it is given.

use protocol::ExecEnd;

use super::{Guest, Subject, make, remove, spec_for};
use crate::{Image, Isolation, SandboxError, SandboxId};

pub async fn unavailable_isolation_is_refused(subject: &dyn Subject) {
    let mut spec = spec_for(subject);
    spec.isolation = Isolation::MicroVm;
    let given = subject.backend().preflight().await.unwrap().isolation;
    let result = subject.backend().create(SandboxId::generate(), &spec).await;
    assert!(given >= Isolation::MicroVm || matches!(result, Err(SandboxError::InsufficientIsolation { .. })));
}

pub async fn an_unknown_image_is_refused(subject: &dyn Subject) {
    let mut spec = spec_for(subject);
    spec.image = Image::Directory("/nonexistent/image".into());
    let id = SandboxId::generate();
    let error = subject.backend().create(id, &spec).await.unwrap_err();
    assert!(matches!(error, SandboxError::NoImage(_)), "{error:?}");
    remove(subject, id).await;
}

pub async fn there_is_no_network_but_loopback(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let guest = Guest::of(subject.backend(), id).await;
    assert_eq!(guest.expect("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await, "lo");
    assert_eq!(guest.expect("tail -n +2 /proc/net/route | wc -l").await, "0");
    remove(subject, id).await;
}

pub async fn commands_run_as_the_agent_without_rights(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let guest = Guest::of(subject.backend(), id).await;
    assert_eq!(guest.expect("id -u; id -g; id -G").await, "1000\n1000\n1000");
    assert_eq!(guest.expect("grep -c 'Cap[PE].*:.*0000000000000000' /proc/self/status").await, "2");
    assert_eq!(guest.expect("getent passwd 1000 | cut -d: -f3,6").await, "1000:/home/agent");
    remove(subject, id).await;
}

/// For backends that give the guest its own user id. The other backends exclude this test by name.
pub async fn the_guest_runs_as_another_user(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let guest = Guest::of(subject.backend(), id).await;
    assert_eq!(guest.expect("grep Uid /proc/1/status").await, "Uid:\t0\t0\t0\t0");
    remove(subject, id).await;
}

pub async fn outgoing_connections_reach_only_the_host(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let mut guest = Guest::of(subject.backend(), id).await;
    let mut incoming = guest.incoming.take().expect("streams that the guest opens");
    let script = "exec 3<>/dev/tcp/127.0.0.1/3128 && echo hello >&3 && cat <&3";
    let command = ["bash", "-c", script];
    let host = async {
        let mut stream = incoming.next().await.expect("the guest opens a stream for the connection");
        stream.close().await.expect("closing it");
    };
    let (ran, ()) = tokio::join!(guest.run_program(&command), host);
    assert_eq!(ran.end, ExecEnd::Code(0), "{ran:?}");
    let ran = guest.run_program(&["bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/80"]).await;
    assert!(ran.end != ExecEnd::Code(0) && ran.stderr.contains("unreachable"), "{ran:?}");
    remove(subject, id).await;
}

pub async fn files_can_be_moved_and_linked_across_directories(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let guest = Guest::of(subject.backend(), id).await;
    let script = "import os; os.mkdir('a'); os.mkdir('b'); open('a/x', 'w').write('moved'); os.rename('a/x', 'b/y'); \
        os.link('b/y', 'a/z'); print(open('a/z').read())";
    assert_eq!(guest.expect(&format!("python3 -c \"{script}\"")).await, "moved");
    remove(subject, id).await;
}

pub async fn the_image_is_read_only_to_the_agent(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let guest = Guest::of(subject.backend(), id).await;
    for path in ["/usr/x", "/usr/bin/x", "/etc/x", "/x", "/bin/x"] {
        let ran = guest.run(&format!("echo x > {path}")).await;
        assert_ne!(ran.end, ExecEnd::Code(0), "{path} was written");
    }
    guest.expect("echo x > /tmp/x; echo x > ~/x; echo x > /var/tmp/x; echo x > /dev/shm/x").await;
    remove(subject, id).await;
}
