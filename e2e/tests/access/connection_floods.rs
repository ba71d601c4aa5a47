//! Floods of connections: the server still answers other clients.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};

use e2e::{Options, RawConnection, wait_until};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::keyed_server::start;

/// The flooding client's address; the tests themselves use 127.0.0.1.
const FLOODING: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn connect_from(address: Ipv4Addr, port: u16) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(address, 0)).unwrap();
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap();
    TcpStream::from(socket)
}

/// Sends a GET request on a new connection.
fn get(port: u16, path: &str, key: Option<&str>) -> String {
    let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}\r\n");
    RawConnection::exchange(port, &head)
}

#[track_caller]
fn expect(status: u16, answer: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "not {status}: {answer}");
}

/// Sends a request head without its body, and waits until the server waits for the body.
fn hold(port: u16, path: &str, key: Option<&str>) -> TcpStream {
    let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let mut stream = connect_from(FLOODING, port);
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\
         Expect: 100-continue\r\n{key}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 100");
    stream
}

#[test]
fn half_open_connections_of_one_address_do_not_block_other_addresses() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    // A long timeout, so that the server itself ends none of them.
    let keyed = start(Options { config: "[http]\nheader_timeout_s = 3600\n".into(), ..Options::default() });
    let port = keyed.server.port;
    let mut flood = Vec::new();
    for number in 0..1100 {
        let mut stream = connect_from(FLOODING, port);
        if number % 2 == 0 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: loc");
        }
        flood.push(stream);
        if number % 100 == 99 {
            expect(200, &get(port, "/healthz", None));
            expect(200, &get(port, "/v1/jobs", Some(&keyed.admin)));
        }
    }
    expect(200, &get(port, "/readyz", None));
    let log = keyed.server.log();
    assert!(log.contains("too many connections"), "{log}");
    drop(flood);
}

#[test]
fn connections_are_reserved_for_authenticated_callers_and_health_checks() {
    let config = "[http]\nmax_connections = 32\nreserved_connections = 16\nrequest_timeout_s = 3600\nidle_timeout_s = 3600\n".into();
    let keyed = start(Options { config, ..Options::default() });
    let (port, key) = (keyed.server.port, Some(keyed.admin.as_str()));
    let mut held: Vec<TcpStream> = (0..16).map(|_| hold(port, "/v1/session", None)).collect();
    let refused = get(port, "/v1/session", None);
    expect(503, &refused);
    let lower = refused.to_ascii_lowercase();
    assert!(lower.contains("too_many_connections") && lower.contains("retry-after: 1"), "{refused}");
    expect(503, &get(port, "/v1/jobs", Some("caisson_wrong")));
    expect(200, &get(port, "/v1/jobs", key));
    expect(200, &get(port, "/healthz", None));
    // A quarter of the reserve is for health checks only.
    held.extend((0..12).map(|_| hold(port, "/v1/jobs", key)));
    expect(503, &get(port, "/v1/jobs", key));
    for path in ["/healthz", "/readyz"] {
        expect(200, &get(port, path, None));
    }
    drop(held);
    wait_until("there is room again", || get(port, "/v1/session", None).starts_with("HTTP/1.1 200"));
}
