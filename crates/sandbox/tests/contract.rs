//! The contract of a backend can be implemented without knowing anything of namespaces or containers: a backend that
//! asks a service over a socket passes the conformance suite, as far as it does not speak of isolation and limits.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod contract_host;

use contract_host::Host;
use sandbox::conformance::{Subject as _, make, remove, spec_for, wait_until_ready};
use sandbox::{Backend as _, EndReason, Phase, SandboxError, SandboxId};

sandbox::conformance_suite! {
    Host::new();
    create_is_idempotent
    concurrent_creates_of_one_id_make_one_sandbox
    destroy_removes_a_sandbox_whose_create_was_dropped
    the_newest_of_two_links_works
    a_broken_link_can_be_reconnected
    destroying_twice_and_destroying_nothing_succeed
    connecting_to_a_missing_sandbox_fails
    impossible_limits_are_refused
    an_unknown_image_is_refused
    files_can_be_moved_and_linked_across_directories
    a_restarted_backend_finds_and_removes_existing_sandboxes
    a_killed_guest_is_reported_as_lost
    many_sandboxes_run_at_once
}

#[tokio::test]
async fn a_requested_sandbox_is_starting_until_there_is_a_place_for_it() {
    let host = Host::new();
    host.service.set_full(true);
    let id = SandboxId::generate();
    host.backend.create(id, &spec_for(&host)).await.unwrap();
    let observed = host.backend.observe(id).await.unwrap();
    assert_eq!(observed.phase, Phase::Starting { message: "there is no place for it".into() });
    assert_eq!(host.backend.list().await.unwrap(), [id]);
    let refused = host.backend.connect(id).await.map(drop).unwrap_err();
    assert!(matches!(refused, SandboxError::NotRunning { .. }), "{refused:?}");
    host.service.set_full(false);
    wait_until_ready(&host.backend, id).await;
    remove(&host, id).await;
}

#[tokio::test]
async fn a_sandbox_that_waits_for_a_place_is_destroyed_for_good() {
    let host = Host::new();
    host.service.set_full(true);
    let id = SandboxId::generate();
    host.backend.create(id, &spec_for(&host)).await.unwrap();
    remove(&host, id).await;
    host.service.set_full(false);
    // The service gives places in order of their ids, so this one would have got its place first.
    let later = make(&host, &spec_for(&host)).await;
    assert_eq!(host.backend.observe(id).await.unwrap().phase, Phase::Missing);
    assert_eq!(host.traces(id), Vec::<String>::new());
    remove(&host, later).await;
}

#[tokio::test]
async fn reasons_of_the_infrastructure_are_reported() {
    let host = Host::new();
    for reason in [EndReason::Evicted, EndReason::Preempted, EndReason::HostLost] {
        let id = make(&host, &spec_for(&host)).await;
        host.service.end(id, reason);
        let Phase::Ended(ended) = host.backend.observe(id).await.unwrap().phase else { panic!("it goes on") };
        assert_eq!(ended.reason, reason);
        remove(&host, id).await;
    }
}

#[tokio::test]
async fn no_server_starts_with_plain_processes() {
    let error = Host::new().backend.preflight().await.unwrap_err();
    assert!(matches!(error, SandboxError::HostUnsupported { .. }), "{error:?}");
}
