//! Tests of the Docker backend on a real engine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod docker_host;

use docker_host::{Engine, Host};
use sandbox::conformance::{Guest, Subject, make, remove, spec_for};
use sandbox::docker::{DockerBackend, DockerConfig};
use sandbox::{
    Backend, CheckState, EndReason, Image, Limit, LimitKind, Limits, Phase, SandboxError, SandboxId,
    SandboxSpec,
};

/// Engine and server see the same files: links through sockets, and sized disks.
mod shared {
    use super::Host;

    sandbox::conformance_suite!(Host::new(), one_user);
}

/// The same disks, but links through the engine's exec.
mod by_relay {
    use super::Host;

    sandbox::conformance_suite! {
        Host::by_relay();
        a_sandbox_runs_commands_and_is_gone_after_destroy
        the_newest_of_two_links_works
        a_broken_link_can_be_reconnected
        connecting_to_a_missing_sandbox_fails
        outgoing_connections_reach_only_the_host
        a_restarted_backend_finds_and_removes_existing_sandboxes
        a_killed_guest_is_reported_as_lost
    }
}

/// An engine that is reached over a network and does not see the server's files. Disks have no limit there, so that
/// test is excluded; `remote_engine_limitations_are_reported` checks that this is reported. The engine does run
/// on this host, so its cgroups can be read.
mod remote {
    use super::Host;

    sandbox::conformance_suite!(Host::remote(), far_away);
    sandbox::conformance_suite! {
        Host::remote();
        processes_are_limited
    }
}

/// The engine does not close a relay's connection when the process that owned the container was killed; the server's
/// pings detect that. The engine still reports the container's state correctly.
#[tokio::test]
async fn killed_owner_is_reported_as_lost_through_a_relay() {
    let host = Host::remote();
    let id = make(&host, &spec_for(&host)).await;
    Guest::of(&host.backend, id).await.expect("true").await;
    host.kill_owner(id).await;
    let ended = loop {
        match host.backend.observe(id).await.unwrap().phase {
            Phase::Ready => tokio::task::yield_now().await,
            other => break other,
        }
    };
    assert!(matches!(&ended, Phase::Ended(ended) if ended.reason == EndReason::Lost), "{ended:?}");
    remove(&host, id).await;
}

#[tokio::test]
async fn remote_engine_limitations_are_reported() {
    let host = Host::remote();
    let capabilities = host.backend.preflight().await.unwrap();
    assert!(!capabilities.enforced.contains(&LimitKind::Disk));
    let id = make(&host, &spec_for(&host)).await;
    let observed = host.backend.observe(id).await.unwrap();
    assert_eq!(observed.phase, Phase::Ready);
    assert_eq!(observed.unenforced.len(), 1, "{observed:?}");
    assert_eq!(observed.unenforced[0].0, LimitKind::Disk);
    assert!(observed.unenforced[0].1.contains("network"), "{observed:?}");
    assert!(observed.usage.pids >= 1 && observed.usage.memory_bytes > 0, "{:?}", observed.usage);
    assert!(host.backend.list().await.unwrap().contains(&id));
    remove(&host, id).await;
    let limits = Limits { disk_mib: Limit::Required(64), ..spec_for(&host).limits };
    let error = host.backend.create(id, &SandboxSpec { limits, ..spec_for(&host) }).await.unwrap_err();
    assert!(matches!(error, SandboxError::LimitUnenforceable { limit: LimitKind::Disk, .. }), "{error:?}");
}

#[tokio::test]
async fn container_has_no_privileges_network_or_engine_socket() {
    let host = Host::new();
    let mut spec = spec_for(&host);
    spec.labels.insert("job".into(), "some-job".into());
    let id = make(&host, &spec).await;
    let found = Host::inspect(id);
    let (config, limits) = (&found["Config"], &found["HostConfig"]);
    assert_eq!(config["User"], "1000:1000");
    assert_eq!(config["Labels"]["caisson.sandbox"], id.to_string());
    assert_eq!(config["Labels"]["caisson.job"], "some-job");
    assert_eq!(limits["CapDrop"], serde_json::json!(["ALL"]));
    assert_eq!(limits["CapAdd"], serde_json::Value::Null);
    assert_eq!(limits["Privileged"], false);
    assert_eq!(limits["ReadonlyRootfs"], true);
    assert_eq!(limits["NetworkMode"], "none");
    assert_eq!(limits["Memory"], 256 << 20);
    assert_eq!(limits["MemorySwap"], 256 << 20);
    assert_eq!(limits["PidsLimit"], 64);
    assert_eq!(limits["CpuQuota"], 150_000);
    let security = limits["SecurityOpt"].to_string();
    assert!(security.contains("no-new-privileges") && security.contains("SCMP_ACT_ERRNO"), "{security}");
    let mounts = found["Mounts"].as_array().unwrap();
    assert!(mounts.iter().all(|mount| !mount["Source"].to_string().contains("docker.sock")), "{mounts:?}");
    let guest = Guest::of(&host.backend, id).await;
    let status =
        guest.expect("grep -E 'Uid|CapBnd|NoNewPrivs|Seccomp:' /proc/1/status | tr -d '\\t\\n'").await;
    assert_eq!(status, "Uid:1000100010001000CapBnd:0000000000000000NoNewPrivs:1Seccomp:2");
    remove(&host, id).await;
}

#[tokio::test]
async fn missing_image_reference_is_refused_with_a_remedy() {
    let host = Host::with(|config| {
        config.images.insert("second".into(), "caisson/agent:other".into());
    });
    for name in ["caisson/agent:other", "second"] {
        let id = make(&host, &SandboxSpec { image: Image::Named(name.into()), ..spec_for(&host) }).await;
        assert_eq!(Guest::of(&host.backend, id).await.expect("whoami").await, "agent");
        remove(&host, id).await;
    }
    for (image, words) in [
        (Image::Named("caisson/nothing".into()), "pull = true"),
        (Image::Named("--privileged".into()), "not a Docker image reference"),
        (Image::Host, "`default`"),
        (Image::Directory("/srv/image".into()), "docker import"),
    ] {
        let id = SandboxId::generate();
        let error = host.backend.create(id, &SandboxSpec { image, ..spec_for(&host) }).await.unwrap_err();
        assert!(matches!(error, SandboxError::NoImage(_)), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
        remove(&host, id).await;
    }
}

#[tokio::test]
async fn extra_certificates_are_trusted_and_image_home_is_kept() {
    let host = Host::new();
    let mut spec = spec_for(&host);
    spec.extra_ca = ["-----BEGIN CERTIFICATE-----\nEXTRA\n-----END CERTIFICATE-----".into()].into();
    let id = make(&host, &spec).await;
    let guest = Guest::of(&host.backend, id).await;
    assert_eq!(guest.expect("grep -c ^EXTRA$ /etc/ssl/certs/ca-certificates.crt").await, "1");
    assert_ne!(guest.expect("grep -c BEGIN /etc/ssl/certs/ca-certificates.crt").await, "1");
    remove(&host, id).await;
}

#[tokio::test]
async fn removed_prepared_image_is_prepared_again() {
    let host = Host::new();
    let id = make(&host, &spec_for(&host)).await;
    let image = Host::inspect(id)["Config"]["Image"].as_str().unwrap().to_owned();
    remove(&host, id).await;
    Engine::ask("DELETE", &format!("/images/{image}?force=true")).expect("the image is there");
    let id = make(&host, &spec_for(&host)).await;
    remove(&host, id).await;
}

#[tokio::test]
async fn servers_on_one_engine_do_not_share_prepared_images() {
    let (first, second) = (Host::new(), Host::new());
    let mut images = Vec::new();
    for host in [&first, &second] {
        let id = make(host, &spec_for(host)).await;
        images.push(Host::inspect(id)["Config"]["Image"].as_str().unwrap().to_owned());
        remove(host, id).await;
    }
    assert_ne!(images[0], images[1]);
    // Removes all images of the second server.
    drop(second);
    assert!(Engine::ask("GET", &format!("/images/{}/json", images[0])).is_some());
    assert!(Engine::ask("GET", &format!("/images/{}/json", images[1])).is_none());
}

#[tokio::test]
async fn restart_removes_containers_of_interrupted_image_builds() {
    let host = Host::new();
    let id = make(&host, &spec_for(&host)).await;
    let image = Host::inspect(id)["Config"]["Image"].as_str().unwrap().to_owned();
    remove(&host, id).await;
    let server = host.server();
    let labels = serde_json::json!({ "caisson.server": &server });
    let name = |key: &str| format!("caisson-image-{server}-{key}");

    // Nobody requests that image again. It is removed when the engine is first contacted, and before a server exits.
    Engine::create_container(&name("other"), &labels);
    host.restarted().preflight().await.unwrap();
    assert!(!Engine::has_container(&name("other")));
    Engine::create_container(&name("other"), &labels);
    host.backend.cleanup().unwrap().finish().await.unwrap();
    assert!(!Engine::has_container(&name("other")));

    // The engine finishes the first request only now, while the next server requests the same container.
    Engine::ask("DELETE", &format!("/images/{image}?force=true")).expect("the image is there");
    let key = image.strip_prefix(&format!("caisson-prepared:{server}-")).unwrap();
    let left = Engine::create_container(&name(key), &serde_json::json!({}));
    let id = make(&host, &spec_for(&host)).await;
    assert!(!Engine::has_container(&left));
    assert!(!Engine::has_container(&name(key)));
    remove(&host, id).await;
}

#[tokio::test]
async fn a_runtime_is_used_by_name_and_an_unknown_one_is_refused_by_name() {
    let host = Host::with(|config| config.runtime = Some("runc".into()));
    let id = make(&host, &spec_for(&host)).await;
    assert_eq!(Host::inspect(id)["HostConfig"]["Runtime"], "runc");
    remove(&host, id).await;
    let host = Host::with(|config| config.runtime = Some("runsc".into()));
    let error = host.backend.preflight().await.unwrap_err().to_string();
    assert!(error.contains("no runtime `runsc`") && error.contains("runc"), "{error}");
    let error = host.backend.create(SandboxId::generate(), &spec_for(&host)).await.unwrap_err();
    assert!(matches!(error, SandboxError::HostUnsupported { .. }), "{error:?}");
    assert!(error.to_string().contains("daemon.json"), "{error}");
}

#[tokio::test]
async fn missing_stopped_and_inaccessible_engines_have_different_errors() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let mut config = DockerConfig::new(folder.path().join("state"), docker_host::program("caisson-guest"));
    config.host = format!("unix://{}", socket.display());
    let backend = DockerBackend::new(config).unwrap();
    let say = async |words: &str, may_come_back: bool| {
        let error = backend.preflight().await.unwrap_err();
        assert_eq!(error.is_unavailable(), may_come_back, "{error:?}");
        let error = backend.engine().unwrap().ping().await.unwrap_err();
        assert_eq!(error.is_unavailable(), may_come_back, "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
        let checks = backend.checks().await;
        assert_eq!(checks[0].state, CheckState::Missing);
        assert!(checks[0].found.contains(words) && checks[0].remedy.is_some(), "{checks:?}");
        let spec = SandboxSpec { image: Image::Named("default".into()), ..sandbox::conformance::spec() };
        let error = backend.create(SandboxId::generate(), &spec).await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    };
    say("no Docker engine", true).await;
    // A socket that nobody listens on.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    say("is not running", true).await;
    std::fs::remove_file(&socket).unwrap();
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let body = r#"{"Version":"18.09.1","ApiVersion":"1.39"}"#;
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    say("too old", false).await;
}

#[tokio::test]
async fn engine_passes_preflight_and_failed_checks_have_remedies() {
    let host = Host::new();
    let capabilities = host.backend.preflight().await.unwrap();
    assert!(capabilities.enforced.contains(&LimitKind::Disk), "{:?}", capabilities.checks);
    for check in capabilities.checks {
        assert!(check.state == CheckState::Good || check.remedy.is_some(), "{check:?}");
    }
}
