//! The fixed ports of `[expose]` on a server with keys. `kernels/expose.rs` has what they show in a browser, and
//! `container/published_ports.rs` the published ports of the server image.

use e2e::{Answer, Options, Server, free_port};
use reqwest::blocking::RequestBuilder;
use serde_json::json;

use crate::keyed_server::{Keyed, start};

const ADDRESS: &str = "127.0.0.2";
const BROWSER: &str = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8";

/// A server with keys and with fixed ports.
struct Exposing {
    keyed: Keyed,
    novnc: u16,
    jupyter: u16,
}

impl Exposing {
    fn start() -> Self {
        let (novnc, jupyter) = (free_port(), free_port());
        let config = format!("[expose]\nlisten = \"{ADDRESS}\"\nnovnc = {novnc}\njupyter = {jupyter}\n");
        Self { keyed: start(Options { config, ..Options::default() }), novnc, jupyter }
    }

    /// Sends a request to a fixed port and follows redirects.
    #[track_caller]
    fn get(&self, port: u16, path: &str, complete: impl Fn(RequestBuilder) -> RequestBuilder) -> Answer {
        let client = e2e::http_client().build().unwrap();
        self.keyed.server.send(complete(client.get(format!("http://{ADDRESS}:{port}{path}"))))
    }

    /// The response at `/` for the holder of a key.
    #[track_caller]
    fn newest(&self, port: u16, key: &str) -> Answer {
        self.get(port, "/", |request| request.bearer_auth(key))
    }

    /// Starts a job that runs until the server ends.
    fn start_job(&self, key: &str) -> String {
        let job = self.keyed.schedule(key, "until [ -e go ]; do sleep 0.1; done");
        self.keyed.wait_for(&job, "running");
        job
    }
}

#[test]
fn fixed_ports_show_the_newest_job_that_a_key_may_read() {
    let server = Exposing::start();
    let keyed = &server.keyed;
    let (ada, bob) = (keyed.key("ada", "submitter", &json!({})), keyed.key("bob", "submitter", &json!({})));
    let viewer = keyed.key("eve", "viewer", &json!({}));
    let hers = server.start_job(&ada);
    let newest = server.start_job(&keyed.admin);
    for (key, job) in [(&ada, &hers), (&keyed.admin, &newest), (&viewer, &newest)] {
        let page = server.newest(server.novnc, key).expect(200);
        assert!(page.header("content-type").starts_with("text/html"), "{}", page.header("content-type"));
        assert!(page.text().contains(job.as_str()), "{}", page.text());
    }
    for port in [server.novnc, server.jupyter] {
        server.newest(port, &bob).expect_problem(503, "nothing_runs");
        server.newest(port, "caisson_wrong").expect_problem(401, "key_unknown");
    }
    // A login at the API counts at every port of the host.
    let login = keyed.server.post("/v1/session", &json!({"key": ada})).expect(200);
    let session = login.header("set-cookie").split(';').next().unwrap().to_owned();
    let page = server.get(server.novnc, "/vnc.html", |request| request.header("Cookie", &session));
    assert!(page.expect(200).text().contains(&hers));
}

#[test]
fn fixed_ports_tell_visitors_where_to_log_in() {
    let server = Exposing::start();
    let job = server.start_job(&server.keyed.admin);
    let link = format!("href=\"http://{ADDRESS}:{}/\"", server.keyed.server.port);
    let desktop = format!("/v1/jobs/{job}/desktop");
    for (port, path) in [
        (server.novnc, "/"),
        (server.novnc, "/vnc.html"),
        (server.novnc, desktop.as_str()),
        (server.jupyter, "/"),
        (server.jupyter, "/lab"),
    ] {
        let page = server.get(port, path, |request| request.header("Accept", BROWSER)).expect(401);
        assert!(page.text().contains(&link), "{path}: {}", page.text());
        assert!(!page.text().contains(&job), "{path}: {}", page.text());
        server.get(port, path, |request| request).expect_problem(401, "key_missing");
    }
}

#[test]
fn the_desktop_port_serves_nothing_else_of_the_api() {
    let server = Exposing::start();
    let keyed = &server.keyed;
    let ada = keyed.key("ada", "submitter", &json!({}));
    let other = server.start_job(&keyed.admin);
    let get = |path: &str| server.get(server.novnc, path, |request| request.bearer_auth(&ada));
    for file in ["/assets/desktop.js", "/assets/desktop.css", "/assets/mark.svg"] {
        get(file).expect(200);
    }
    for path in ["/v1/jobs", "/v1/session", "/openapi.json", "/metrics", "/assets/docs.js"] {
        get(path).expect_problem(404, "route_not_found");
    }
    get(&format!("/v1/jobs/{other}/desktop")).expect_problem(404, "job_not_found");
    let rebound = server.get(server.novnc, "/", |request| request.header("Host", "evil.example"));
    rebound.expect_problem(421, "host_not_allowed");
    let foreign =
        |request: RequestBuilder| request.bearer_auth(&keyed.admin).header("Origin", "http://evil.example");
    server
        .get(server.novnc, &format!("/v1/jobs/{other}/desktop/state"), foreign)
        .expect_problem(403, "origin_not_allowed");
}

#[test]
fn fixed_ports_beyond_loopback_require_keys_or_an_explicit_setting() {
    for (name, address) in [("novnc", "0.0.0.0"), ("jupyter", "::"), ("vnc", "0.0.0.0")] {
        let config = format!("[expose]\nlisten = [\"127.0.0.1\", \"{address}\"]\n{name} = {}\n", free_port());
        let server = Server::prepare(Options { config, ..Options::default() });
        let output = server.command().output().unwrap();
        let printed =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "it listens on {address}: {printed}");
        assert!(
            printed.contains("caisson.toml:2: expose.listen: ") && printed.contains(address),
            "{printed}"
        );
        assert!(printed.contains("caisson keys add") && printed.contains("insecure_listen"), "{printed}");
    }
}
