//! `caisson ports`: lists listening ports of a sandbox and forwards connections to them.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;

use e2e::{Server, free_port, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::cli_command::{command, typed};

/// Echoes everything it receives, on any number of connections.
const ECHO: &str = "import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while piece := self.request.recv(65536): self.request.sendall(piece)
socketserver.ThreadingTCPServer(('127.0.0.1', 4321), Echo).serve_forever()
";

#[test]
fn ports_are_listed_and_forwarded() {
    let server = Server::start();
    let id = typed(&server, &["sandboxes", "create"]).expect(0).stdout.trim().to_owned();
    let sandbox = server.sandbox(&id);
    assert_eq!(typed(&server, &["ports", &id]).expect(0).stderr.trim(), "no open ports in the sandbox");
    sandbox.put_file("echo.py", ECHO);
    let started = sandbox.exec("setsid /usr/bin/python3 echo.py > echo.log 2>&1 & echo started");
    assert_eq!(started["exit_code"], 0, "{started}");
    wait_until("it listens", || typed(&server, &["ports", &id]).expect(0).stdout.contains("4321"));
    let listed = typed(&server, &["ports", &id]).expect(0).stdout;
    assert!(listed.contains(&format!("http://{id}-4321.localhost:{}", server.port)), "{listed}");

    let local = free_port();
    let mut typing = command(server.folder(), &["ports", &id, "--forward", &format!("{local}:4321")]);
    typing.env("CAISSON_URL", server.url("")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut forwarding = typing.spawn().unwrap();
    wait_until("the local port is open", || TcpStream::connect(("127.0.0.1", local)).is_ok());
    let sent: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    let mut sending = stream.try_clone().unwrap();
    let heard = std::thread::scope(|scope| {
        scope.spawn(|| {
            sending.write_all(&sent).unwrap();
            sending.flush().unwrap();
        });
        let mut heard = vec![0; sent.len()];
        stream.read_exact(&mut heard).unwrap();
        heard
    });
    assert!(heard == sent, "what came back is not what was sent");
    stream.shutdown(Shutdown::Both).unwrap();
    // A second connection to the same port after the first has closed.
    let mut second = TcpStream::connect(("127.0.0.1", local)).unwrap();
    second.write_all(b"again").unwrap();
    let mut again = [0; 5];
    second.read_exact(&mut again).unwrap();
    assert_eq!(&again, b"again");
    kill_process(Pid::from_child(&forwarding), Signal::INT).unwrap();
    assert!(forwarding.wait().unwrap().success());

    typed(&server, &["ports", &id, "--forward", "80:x"]).expect_message(2, &["`x` is not a port"]);
    let taken = format!("{}:4321", server.port);
    typed(&server, &["ports", &id, "--forward", &taken])
        .expect_message(2, &["another program uses the port", "--forward"]);
}
