//! TLS with certificate files, and forwarded headers of a trusted proxy.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use e2e::{Options, Server, binary, wait_until};
use reqwest::Method;
use reqwest::blocking::Client;
use serde_json::json;

use crate::keyed_server::{start, stderr, stdout};

/// A certificate and its key in files.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn chain(&self) -> PathBuf {
        self.folder.path().join("chain.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    /// Writes a new certificate and returns it for clients to trust.
    fn renew(&self) -> String {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        std::fs::write(self.chain(), made.cert.pem()).unwrap();
        std::fs::write(self.key(), made.signing_key.serialize_pem()).unwrap();
        made.cert.pem()
    }

    /// Starts a server with this certificate.
    fn serve(&self) -> Server {
        let [chain, key] = [self.chain(), self.key()].map(|path| path.display().to_string());
        let config = format!("[tls]\ncertificate = {chain:?}\nkey = {key:?}\n");
        let server = Server::prepare(Options { config, ..Options::default() });
        server.spawn();
        server
    }
}

/// A client that trusts only this certificate.
fn trusting(certificate: &str) -> Client {
    let trusted = reqwest::Certificate::from_pem(certificate.as_bytes()).unwrap();
    let builder = e2e::http_client().tls_certs_only([trusted]);
    builder.timeout(Duration::from_secs(60)).build().unwrap()
}

#[test]
fn server_speaks_tls_with_the_configured_certificate() {
    let files = Files::new();
    let client = trusting(&files.renew());
    let server = files.serve();
    let url = format!("https://localhost:{}", server.port);
    wait_until("the server is ready", || {
        client.get(format!("{url}/readyz")).send().is_ok_and(|answer| answer.status() == 200)
    });
    let added =
        client.post(format!("{url}/v1/keys")).json(&json!({"name": "ada", "role": "admin"})).send().unwrap();
    let secret = added.json::<serde_json::Value>().unwrap()["secret"].as_str().unwrap().to_owned();
    let login = client.post(format!("{url}/v1/session")).json(&json!({ "key": secret })).send().unwrap();
    let cookie = login.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(
        cookie.contains("Secure") && cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"),
        "{cookie}"
    );
    let plain = e2e::http_client().build().unwrap();
    assert!(plain.get(server.url("/healthz")).send().is_err(), "nothing is said without TLS");

    let caisson = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.args(words).env("CAISSON_URL", &url).env("CAISSON_KEY", &secret).output().unwrap()
    };
    let unknown = caisson(&["jobs"]);
    assert!(!unknown.status.success(), "a certificate that nobody knows is not taken");
    let chain = files.chain();
    let file = chain.to_str().unwrap();
    let listed = caisson(&["jobs", "--ca-file", file]);
    assert!(listed.status.success(), "{}", stderr(&listed));
    let sandbox = stdout(&caisson(&["sandboxes", "--ca-file", file, "create"]));
    let ran = caisson(&["exec", "--ca-file", file, sandbox.trim(), "--", "echo", "hello"]);
    assert!(stdout(&ran).contains("hello"), "{}", stderr(&ran));
    caisson(&["sandboxes", "--ca-file", file, "rm", sandbox.trim()]);
}

#[test]
fn renewed_certificate_is_used_after_sighup() {
    let files = Files::new();
    let first = files.renew();
    let server = files.serve();
    let url = format!("https://localhost:{}/healthz", server.port);
    // A new connection each time: an open one keeps the certificate of its handshake.
    let is_greeted_with =
        |certificate: &str| trusting(certificate).get(&url).send().is_ok_and(|answer| answer.status() == 200);
    let hang_up = || {
        let sent = Command::new("kill").args(["-HUP", &server.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    wait_until("the server is ready", || is_greeted_with(&first));
    let second = files.renew();
    assert!(is_greeted_with(&first) && !is_greeted_with(&second), "files alone change nothing");
    hang_up();
    wait_until("the new certificate is handed out", || is_greeted_with(&second));
    assert!(!is_greeted_with(&first), "the old one is not");
    std::fs::write(files.key(), "no key").unwrap();
    hang_up();
    wait_until("the wrong file is named", || server.log().contains("reading the key"));
    assert!(is_greeted_with(&second), "what was read before stays");
}

#[test]
fn invalid_certificates_are_reported_at_startup() {
    for (config, named) in [
        ("[tls]\ncertificate = \"/nowhere.pem\"\nkey = \"/nowhere.key\"\n", "/nowhere.pem"),
        ("[tls]\ncertificate = \"/nowhere.pem\"\n", "tls.key"),
        ("trusted_proxies = [\"proxy.example\"]\n", "trusted_proxies"),
    ] {
        let server = Server::prepare(Options { config: config.into(), ..Options::default() });
        server.spawn();
        assert!(!server.wait().success());
        assert!(server.log().contains(named), "{}", server.log());
    }
}

#[test]
fn forwarded_headers_are_accepted_only_from_a_trusted_proxy() {
    for (config, secure, from) in
        [("", false, "127.0.0.1"), ("trusted_proxies = [\"127.0.0.1\"]\n", true, "203.0.113.7")]
    {
        let keyed = start(Options { config: config.into(), ..Options::default() });
        let request = keyed.server.request(Method::POST, "/v1/session").json(&json!({"key": keyed.admin}));
        let request =
            request.header("X-Forwarded-Proto", "https").header("X-Forwarded-For", "6.6.6.6, 203.0.113.7");
        let login = keyed.server.send(request).expect(200);
        assert_eq!(login.header("set-cookie").contains("Secure"), secure, "{config}");
        let entries = keyed.get(&keyed.admin, "/v1/access-log").json()["entries"].clone();
        assert_eq!(
            (&entries[0]["path"], &entries[0]["from"]),
            (&json!("/v1/session"), &json!(from)),
            "{entries}"
        );
    }
}
