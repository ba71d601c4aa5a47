//! Common clients through the proxy, on the default image.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use e2e::{Options, SecretHost, Server, check_clients, default_images, shell};
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;

const CONFIG: &str = "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\n";

#[test]
fn package_managers_and_git_work_with_the_packages_preset() {
    let options = Options { config: CONFIG.into(), images: Some(default_images()), ..Options::default() };
    check_clients(&Server::start_with(options));
}

#[test]
fn go_java_node_python_and_the_browser_trust_the_job_ca() {
    let host = SecretHost::start();
    let options = Options { config: host.config(), images: Some(default_images()), ..Options::default() };
    host.check(&Server::start_with(options));
}

#[test]
fn tunnel_carries_http_2() {
    let folder = tempfile::tempdir().unwrap();
    let outside = Http2::start(folder.path());
    let server = Server::start_with(Options {
        config: format!("{CONFIG}extra_ca = [\"{}\"]\n", outside.certificate.display()),
        ..Options::default()
    });
    let place = format!("localhost:{}", outside.port);
    let ask =
        format!("curl -sS -m 60 --noproxy '' --http2 -w ' over HTTP/%{{http_version}}' https://{place}/");
    let job =
        server.schedule(&json!({"steps": [shell(&ask)], "egress": {"allow": [place]}, "image": "host"}));
    let mut events = job.follow();
    events.until_end();
    let said = events.output("step-1.1", "");
    assert_eq!(job.status()["status"], "complete", "{said}\n{}", events.summary());
    assert!(said.contains("a stream of its own over HTTP/2"), "{said}");
}

/// A Node server that only speaks HTTP/2 over TLS.
struct Http2 {
    port: u16,
    certificate: PathBuf,
    process: Child,
}

impl Http2 {
    fn start(folder: &Path) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let path = folder.join("certificate.pem");
        std::fs::write(&path, certificate.pem()).unwrap();
        std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
        let program = "const fs = require('fs');\n\
            const server = require('http2').createSecureServer(\n\
              {key: fs.readFileSync('key.pem'), cert: fs.readFileSync('certificate.pem'), allowHTTP1: false});\n\
            server.on('stream', (stream) => { stream.respond({':status': 200}); stream.end('a stream of its own'); });\n\
            server.listen(0, '127.0.0.1', () => console.log(server.address().port));";
        let mut process = Command::new("/usr/bin/node")
            .args(["-e", program])
            .current_dir(folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("node, of the package nodejs");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { port: line.trim().parse().unwrap(), certificate: path, process }
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
