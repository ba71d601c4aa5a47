//! Services: start on first use, sharing, stop when idle, restart after a crash.
// Clippy does not recognize the helper functions as part of the tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;

use protocol::{
    Endpoint, GuestClient, ProtocolError, Readiness, ServiceName, ServiceSpec, ServiceState, ServiceStatus,
};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A server that sends its process ID to each connection and then echoes.
const ECHO: &str = "
import os, socket, sys, threading
path = sys.argv[1]
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(64)
print('echo listens', flush=True)
def serve(connection):
    try:
        connection.sendall(b'%d\\n' % os.getpid())
        while data := connection.recv(4096):
            connection.sendall(data)
    except OSError:
        pass  # Whoever only looked whether it listens is gone.
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

fn name(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

fn service(service: &str, program: &[&str], ready: Readiness) -> ServiceSpec {
    ServiceSpec {
        name: name(service),
        program: program.iter().map(|&word| word.to_owned()).collect(),
        environment: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        directory: None,
        ready,
        start_timeout_ms: 20_000,
        idle_ms: None,
        requires: Vec::new(),
    }
}

fn echo(guest: &TestGuest, service_name: &str) -> (ServiceSpec, Endpoint) {
    let socket = guest.workspace().join(format!("{service_name}.socket")).to_str().unwrap().to_owned();
    let endpoint = Endpoint::Unix(socket.clone());
    let program = ["python3", "-c", ECHO, &socket];
    (service(service_name, &program, Readiness::Accepts(endpoint.clone())), endpoint)
}

/// Opens a connection. Returns it with the process ID of the server.
async fn open(
    client: &GuestClient,
    (spec, endpoint): &(ServiceSpec, Endpoint),
) -> (impl protocol::ByteStream + use<>, u32) {
    let mut stream = client.open_service(spec.clone(), endpoint.clone()).await.unwrap();
    let mut pid = String::new();
    loop {
        match stream.read_u8().await.unwrap() {
            b'\n' => break,
            byte => pid.push(char::from(byte)),
        }
    }
    (stream, pid.parse().unwrap())
}

async fn status(client: &GuestClient, wanted: &str) -> ServiceStatus {
    let services = client.services().await.unwrap();
    services.into_iter().find(|service| service.name == name(wanted)).unwrap()
}

async fn wait_for(
    client: &GuestClient,
    wanted: &str,
    is_so: impl Fn(&ServiceStatus) -> bool,
) -> ServiceStatus {
    loop {
        let status = status(client, wanted).await;
        if is_so(&status) {
            return status;
        }
    }
}

fn refusal(error: ProtocolError) -> String {
    match error {
        ProtocolError::Refused(message) => message,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn concurrent_users_share_one_start() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let spec = echo(&guest, "echo");
    let all = futures::future::join_all((0..10).map(|_| open(&client, &spec))).await;
    let first = all[0].1;
    for (mut stream, pid) in all {
        assert_eq!(pid, first);
        stream.write_all(b"hello").await.unwrap();
        let mut back = [0u8; 5];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"hello");
    }
    let status = status(&client, "echo").await;
    assert_eq!((status.starts, status.crashes, status.state), (1, 0, ServiceState::Running));
    assert_eq!(client.service_log(name("echo")).await.unwrap(), "echo listens\n");
}

#[tokio::test]
async fn missing_service_program_is_reported_without_a_start() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let spec = service("desktop", &["no-such-server", "-x"], Readiness::Started);
    let message = refusal(client.start_service(spec).await.unwrap_err());
    assert_eq!(
        message,
        "starting the service `desktop`: the image of this sandbox has no program `no-such-server`"
    );
    let status = status(&client, "desktop").await;
    assert_eq!((status.starts, status.state), (0, ServiceState::Failed));
}

#[tokio::test]
async fn failed_start_reports_the_last_output() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let program = ["sh", "-c", "echo one; echo cannot open display >&2; exit 7"];
    let spec = service("broken", &program, Readiness::File("/nowhere".to_owned()));
    let message = refusal(client.start_service(spec).await.unwrap_err());
    assert!(message.contains("exit code 7") && message.contains("cannot open display"), "{message}");
    let mut slow = service("slow", &["sleep", "1000"], Readiness::File("/nowhere".to_owned()));
    slow.start_timeout_ms = 50;
    let message = refusal(client.start_service(slow).await.unwrap_err());
    assert!(message.contains("not ready after 0.05 s"), "{message}");
}

#[tokio::test]
async fn a_service_that_prints_its_readiness_is_waited_for() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let program = ["sh", "-c", "read -r go < go; echo it is ready now; sleep 1000"];
    let spec = service("printer", &program, Readiness::Printed("is ready".to_owned()));
    run_shell(&client, "pipe", "mkfifo go").await;
    let starting = client.start_service(spec);
    let letting_go = run_shell(&client, "go", "echo > go");
    let (started, _) = tokio::join!(starting, letting_go);
    started.unwrap();
    assert_eq!(status(&client, "printer").await.state, ServiceState::Running);
}

#[tokio::test]
async fn idle_service_stops_and_restarts_on_next_use() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut spec = echo(&guest, "echo");
    spec.0.idle_ms = Some(20);
    let (stream, first) = open(&client, &spec).await;
    assert_eq!(status(&client, "echo").await.users, 1);
    drop(stream);
    let stopped = wait_for(&client, "echo", |status| status.state == ServiceState::Stopped).await;
    assert_eq!((stopped.users, stopped.crashes), (0, 0));
    let (_stream, second) = open(&client, &spec).await;
    assert_ne!(first, second);
}

#[tokio::test]
async fn crashed_service_restarts_and_its_requirements_keep_running() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let below = echo(&guest, "below");
    let mut above = echo(&guest, "above").0;
    above.requires = vec![below.0.clone()];
    let (mut stream, below_pid) = open(&client, &(above, below.1.clone())).await;
    let running = status(&client, "above").await;
    let first = running.pid.unwrap();
    assert_ne!(first, below_pid);
    run_shell(&client, "kill", &format!("kill -9 {first}")).await;
    let is_back = |status: &ServiceStatus| status.state == ServiceState::Running && status.starts == 2;
    let again = wait_for(&client, "above", is_back).await;
    assert_eq!(again.crashes, 1);
    assert!(again.message.unwrap().contains("signal 9"));
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    assert_eq!(status(&client, "below").await.starts, 1);
}

#[tokio::test]
async fn a_crash_ends_the_connection_and_the_next_one_finds_a_new_process() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let spec = echo(&guest, "echo");
    let (mut stream, first) = open(&client, &spec).await;
    run_shell(&client, "kill", &format!("kill -9 {first}")).await;
    assert_eq!(stream.read(&mut [0u8; 8]).await.unwrap_or(0), 0);
    let (_stream, second) = open(&client, &spec).await;
    assert_ne!(first, second);
    assert_eq!(status(&client, "echo").await.crashes, 1);
}

#[tokio::test]
async fn service_can_be_stopped_and_restarted() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let spec = echo(&guest, "echo");
    let unknown = refusal(client.stop_service(name("echo")).await.unwrap_err());
    assert!(unknown.contains("`echo` was never started"), "{unknown}");
    let (mut stream, first) = open(&client, &spec).await;
    client.restart_service(name("echo")).await.unwrap();
    assert_eq!(stream.read(&mut [0u8; 8]).await.unwrap_or(0), 0);
    let (_stream, second) = open(&client, &spec).await;
    assert_ne!(first, second);
    client.stop_service(name("echo")).await.unwrap();
    let stopped = status(&client, "echo").await;
    assert_eq!((stopped.state, stopped.pid), (ServiceState::Stopped, None));
    client.restart_service(name("echo")).await.unwrap();
    assert_eq!(status(&client, "echo").await.starts, 3);
}

#[tokio::test]
async fn stopping_a_service_ends_its_daemons() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    run_shell(&client, "pipe", "mkfifo go").await;
    let program =
        ["sh", "-c", "(setsid sh -c 'echo $$ > daemon; echo > go; exec sleep 1000' &); exec sleep 1000"];
    client.start_service(service("parent", &program, Readiness::Started)).await.unwrap();
    let daemon = run_shell(&client, "daemon", "read -r go < go; cat daemon").await;
    client.stop_service(name("parent")).await.unwrap();
    let state = state_and_parent(daemon.trim()).map(|(state, _)| state);
    assert!(matches!(state, None | Some('Z' | 'X')), "{daemon} still lives: {state:?}");
}

#[tokio::test]
async fn a_bad_definition_is_refused() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut deep = service("deep", &["true"], Readiness::Started);
    for _ in 0..6 {
        let mut above = service("deep", &["true"], Readiness::Started);
        above.requires = vec![deep];
        deep = above;
    }
    let message = refusal(client.start_service(deep).await.unwrap_err());
    assert!(message.contains("too deeply"), "{message}");
    let empty = service("empty", &[], Readiness::Started);
    let message = refusal(client.start_service(empty).await.unwrap_err());
    assert!(message.contains("no program was named"), "{message}");
}
