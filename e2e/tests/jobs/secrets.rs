//! Secrets: the sandbox has a placeholder, the secret's hosts receive the value, and nobody else ever sees it.

use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use e2e::{ExternalServer, Options, Server, shell, wait_until};
use rustix::fs::{SeekFrom, seek};
use serde_json::{Value, json};

const CANARY: &str = "canary/7f3a+Q9-do-not-show";

/// Starts a server with the secret `API_TOKEN` that trusts the outside server's certificate.
fn server_with(outside: &ExternalServer, more: &str) -> Server {
    let server = Server::prepare(Options::default());
    let token = server.folder().join("token");
    std::fs::write(&token, format!("{CANARY}\n")).unwrap();
    let config = format!(
        "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\nextra_ca = [\"{}\"]\n{more}\n[secrets.API_TOKEN]\ncommand = [\"cat\", \"{}\"]\n",
        outside.certificate(server.folder()).display(),
        token.display()
    );
    std::fs::write(server.folder().join("caisson.toml"), config).unwrap();
    server.restart();
    server
}

fn job(outside: &ExternalServer, steps: &[Value]) -> Value {
    let place = format!("localhost:{}", outside.port);
    json!({
        "steps": steps, "egress": {"allow": [place]}, "image": "host",
        "secrets": {"API_TOKEN": {"hosts": [place]}},
    })
}

fn ask(outside: &ExternalServer, how: &str) -> String {
    format!("curl -sS -m 60 --noproxy '' {how} https://localhost:{}/", outside.port)
}

/// The value in every encoding in which it could leak.
fn forms() -> Vec<Vec<u8>> {
    let urlencoded = CANARY.replace('/', "%2F").replace('+', "%2B");
    // Python's `quote` keeps the slash.
    let quoted = CANARY.replace('+', "%2B");
    [CANARY.to_owned(), STANDARD.encode(CANARY).trim_end_matches('=').to_owned(), urlencoded, quoted]
        .map(String::into_bytes)
        .to_vec()
}

fn has_value(bytes: &[u8]) -> bool {
    forms().iter().any(|form| bytes.windows(form.len()).any(|window| window == form.as_slice()))
}

/// Files below a folder that contain the value.
fn leaks(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(leaks(&path));
        } else if kind.is_file() && has_value(&read_data(&path)) {
            found.push(path.display().to_string());
        }
    }
    found
}

/// The bytes of a file without its holes: the disk images of sandboxes are mostly holes.
fn read_data(path: &Path) -> Vec<u8> {
    let Ok(mut file) = std::fs::File::open(path) else { return Vec::new() };
    let (mut bytes, mut at) = (Vec::new(), 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        // A file that is being removed may have become shorter meanwhile.
        let Ok(end) = seek(&file, SeekFrom::Hole(start)) else { break };
        seek(&file, SeekFrom::Start(start)).unwrap();
        (&mut file).take(end - start).read_to_end(&mut bytes).unwrap();
        at = end;
    }
    bytes
}

#[test]
fn secret_value_reaches_its_host_and_nothing_else() {
    let outside = ExternalServer::echo("localhost");
    let server = server_with(&outside, "");
    let python = format!(
        "import os, ssl, urllib.request as u\nos.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n\
         r = u.Request('https://localhost:{}/', headers={{'Authorization': 'Bearer ' + os.environ['API_TOKEN']}})\n\
         print(u.urlopen(r, timeout=60).read().decode())",
        outside.port
    );
    // Reversed, so that the search does not find the command itself.
    let backwards: String = CANARY.chars().rev().collect();
    let search = format!(
        "value=$(printf %s '{backwards}' | rev); grep -rlF -- \"$value\" /workspace /home /tmp /etc; \
         grep -lF -- \"$value\" /proc/[0-9]*/environ 2>/dev/null; echo searched"
    );
    let steps = [
        shell("echo \"$API_TOKEN\" > token.txt; cat token.txt"),
        shell(&ask(&outside, "-D heads.txt -o body.txt -H \"Authorization: Bearer $API_TOKEN\"")),
        shell("cat heads.txt body.txt; until [ -e go ]; do sleep 0.05; done"),
        shell(&ask(&outside, "--http2 -w 'HTTP/%{http_version}' -u \"agent:$API_TOKEN\"")),
        json!({"tool": "python", "code": python}),
        shell(&search),
    ];
    let job = server.schedule(&job(&outside, &steps));
    let mut events = job.follow();
    events.until("the answer was shown", |event| event.is("call_output") && event.call() == "step-3.1");
    // The CA that the sandbox trusts is the same after a restart.
    server.kill9();
    server.restart();
    job.touch("go");
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}\n{}", events.output("step-5.1", ""), events.summary());
    assert!(events.output("step-1.1", "stdout").starts_with("caisson-placeholder-"), "{}", events.summary());
    let shown = events.output("step-3.1", "stdout");
    assert!(
        shown.contains("echo: Bearer ****") && shown.to_lowercase().contains("x-echo: bearer ****"),
        "{shown}"
    );
    assert!(events.output("step-5.1", "stdout").contains("echo: Bearer ****"), "{}", events.summary());
    // A client that prefers HTTP/2 is served over HTTP/1.1.
    assert!(events.output("step-4.1", "stdout").ends_with("HTTP/1.1"), "{}", events.summary());
    assert_eq!(events.output("step-6.1", "stdout"), "searched\n");
    let heads = outside.heads();
    assert_eq!(
        heads.iter().filter(|head| head.contains(&format!("Bearer {CANARY}"))).count(),
        2,
        "{heads:?}"
    );
    let basic = STANDARD.encode(format!("agent:{CANARY}"));
    assert_eq!(heads.iter().filter(|head| head.contains(&basic)).count(), 1, "{heads:?}");
    let mut output = job.output();
    for name in output.names() {
        assert!(!has_value(&output.read(&name)), "{name} in the zip has the value");
    }
    let used: Vec<Value> = job.manifest()["provenance"].as_array().unwrap().clone();
    assert!(used.iter().all(|download| download["secrets"] == json!(["API_TOKEN"])), "{used:?}");
    // The CA's key is removed when the job ends.
    let authority = server.data().join("jobs").join(&job.id).join("authority");
    wait_until("the authority is removed", || !authority.exists());
    server.stop();
    assert_eq!(leaks(&server.data()), Vec::<String>::new());
    assert!(!has_value(server.log().as_bytes()), "{}", server.log());
    assert!(events.events.iter().all(|event| !has_value(event.data().to_string().as_bytes())));
}

#[test]
fn placeholder_to_other_hosts_is_refused_and_logged() {
    let (outside, other) =
        (ExternalServer::echo("localhost"), ExternalServer::http(|_, client| e2e::respond(client, b"hello")));
    let server = server_with(&outside, "");
    let place = format!("http://localhost:{}/", other.port);
    let command = format!(
        "curl -sS -m 60 --noproxy '' -H \"X-Token: $API_TOKEN\" {place}; \
         curl -sS -m 60 --noproxy '' \"{place}?token=$API_TOKEN\"; curl -sS -m 60 --noproxy '' {place}"
    );
    let mut wanted = job(&outside, &[shell(&command)]);
    wanted["egress"] = json!({"allow": [format!("localhost:{}", other.port)]});
    let job = server.schedule(&wanted);
    let mut events = job.follow();
    events.until_end();
    let output = events.output("step-1.1", "stdout");
    assert_eq!(output.matches("reason: secret_host_mismatch").count(), 2, "{output}");
    assert!(output.ends_with("hello"), "{output}");
    let attempts = events.count(|event| event.is("egress") && event.data()["code"] == "secret_host_mismatch");
    assert_eq!(attempts, 2, "{}", events.summary());
    assert_eq!(other.heads().len(), 1);
}

#[test]
fn leaked_secret_value_is_redacted_everywhere() {
    let (outside, other) =
        (ExternalServer::echo("localhost"), ExternalServer::http(|_, client| e2e::respond(client, b"hello")));
    let server = server_with(&outside, "");
    let mut wanted = job(
        &outside,
        &[
            shell(
                "echo ready; until [ -e go ]; do sleep 0.05; done; cat leak; base64 -w0 leak; echo; cat leak >&2; python3 -c 'import urllib.parse; print(urllib.parse.quote(open(\"leak\").read()))'",
            ),
            json!({"tool": "read_file", "path": "leak"}),
        ],
    );
    let place = format!("localhost:{}", other.port);
    wanted["egress"]["allow"].as_array_mut().unwrap().push(json!(place));
    let job = server.schedule(&wanted);
    let mut events = job.follow();
    events.until("it runs", |event| event.is("call_output"));
    job.put_file("leak", CANARY).expect(200);
    let read = job.get_file("leak").expect(200).text();
    assert_eq!(read, "*".repeat(CANARY.len()));
    let said =
        job.exec("cat leak; printf %s \"$(cat leak)\" | jq -sRr @uri 2>/dev/null; true").expect(200).text();
    assert!(!has_value(said.as_bytes()) && said.contains("****"), "{said}");
    // Names can leak as well as contents: of folders and files, also encoded, of link targets, and of skipped files.
    let naming = format!(
        "value=$(cat leak); mkdir -p \"$(dirname \"$value\")\"; echo named > \"$value\"; echo two > \"$(printf %s \"$value\" | base64 -w0)\"; \
         ln -s \"/nowhere/$value\" link; mkfifo \"$value.pipe\"; curl -sS -m 60 --noproxy '' \"http://{place}/$value\""
    );
    let named = job.exec(&naming).expect(200).json();
    assert_eq!((&named["exit_code"], &named["stdout"]), (&json!(0), &json!("hello")), "{named}");
    // The file audit is available while the job runs only if the host supports watching files.
    for path in ["files?depth=3", "network", "audit/files"] {
        let told = job.get(path).text();
        assert!(!has_value(told.as_bytes()), "{path}: {told}");
    }
    job.touch("go");
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert_eq!(other.heads().len(), 1);
    let output = events.output("step-1.1", "stdout");
    assert!(output.contains("****") && !has_value(output.as_bytes()), "{output}");
    assert!(!has_value(events.output("step-1.1", "stderr").as_bytes()));
    let mut zip = job.output();
    assert_eq!(zip.text("leak"), "*".repeat(CANARY.len()));
    for name in zip.names() {
        assert!(
            !has_value(name.as_bytes()) && !has_value(&zip.read(&name)),
            "{name} in the zip has the value"
        );
    }
    assert_eq!(zip.text(&"*".repeat(CANARY.len())), "named\n");
    assert!(events.events.iter().all(|event| !has_value(event.data().to_string().as_bytes())));
    // The sandbox's files are removed shortly after the end of the job.
    wait_until("the sandbox's files are removed", || leaks(&server.data()).is_empty());
    server.stop();
    assert_eq!(leaks(&server.data()), Vec::<String>::new());
}

#[test]
fn host_with_an_untrusted_certificate_gets_no_secret() {
    let outside = ExternalServer::echo("elsewhere.invalid");
    let server = server_with(&outside, "");
    let asking = ask(&outside, "-w '\\nstatus %{http_code}\\n' -H \"Authorization: Bearer $API_TOKEN\"");
    let job = server.schedule(&job(&outside, &[shell(&asking)]));
    let mut events = job.follow();
    events.until_end();
    let output = events.output("step-1.1", "stdout");
    assert!(output.contains("bad_certificate") && output.contains("status 502"), "{output}");
    assert!(outside.heads().is_empty());
}

#[test]
fn unknown_secret_is_refused_with_the_known_ones() {
    let outside = ExternalServer::echo("localhost");
    let bound = "[secrets.BOUND]\ncommand = [\"echo\", \"another-value\"]\nhosts = [\"api.example.org\"]";
    let server = server_with(&outside, bound);
    for (secrets, field) in [
        (json!({"OTHER": {"hosts": ["a.org"]}}), "secrets.OTHER"),
        (json!({"API_TOKEN": {"hosts": []}}), "secrets.API_TOKEN.hosts"),
        (json!({"API_TOKEN": {"hosts": ["*"]}}), "secrets.API_TOKEN.hosts[0]"),
        // If the operator restricts a secret to hosts, a job cannot name others.
        (json!({"BOUND": {"hosts": ["api.example.org", "evil.example"]}}), "secrets.BOUND.hosts[1]"),
        (json!({"BOUND": {"hosts": ["*.example.org"]}}), "secrets.BOUND.hosts[0]"),
    ] {
        let refusal = server
            .post("/schedule", &json!({"steps": [shell("true")], "secrets": secrets}))
            .expect(422)
            .json();
        assert_eq!(
            (&refusal["code"], &refusal["field"]),
            (&json!("invalid_field"), &json!(field)),
            "{refusal}"
        );
        assert!(!has_value(refusal.to_string().as_bytes()));
    }
    let refusal = server
        .post("/schedule", &json!({"steps": [shell("true")], "secrets": {"OTHER": {"hosts": ["a.org"]}}}))
        .expect(422)
        .json();
    assert!(refusal["detail"].as_str().unwrap().contains("it has: API_TOKEN"), "{refusal}");
    // A job whose secret cannot be read fails before it starts, with the reason.
    std::fs::remove_file(server.folder().join("token")).unwrap();
    let status = server.schedule(&job(&outside, &[shell("true")])).wait_for_failure("secret_unavailable");
    assert!(status["reason"].as_str().unwrap().contains("API_TOKEN"), "{status}");
}
