//! Live views are subject to the same permission check as everything else. A share link shows one of them and nothing
//! more. Callers' credentials never reach a job.

use e2e::{Options, RawConnection, wait_until};
use reqwest::Method;
use serde_json::{Value, json};

use crate::keyed_server::{Keyed, start, stderr, stdout};

/// Serves the headers of each request as JSON.
const ECHO: &str = r#"
import http.server, json
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        seen = {name.lower(): value for name, value in self.headers.items()}
        body = json.dumps({"x-path": self.path, **seen}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", 8123), Echo).serve_forever()
"#;

/// A response whose redirects are not followed.
struct Raw {
    status: u16,
    head: String,
    body: String,
}

impl Raw {
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

fn ask(keyed: &Keyed, host: &str, path: &str, headers: &[(&str, &str)]) -> Raw {
    let mut request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    let answer = RawConnection::exchange(keyed.server.port, &(request + "\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    Raw { status, head: head.to_owned(), body: body.to_owned() }
}

/// The path of a URL.
fn path_of(url: &str) -> String {
    let rest = url.split_once("://").unwrap().1;
    format!("/{}", rest.split_once('/').unwrap().1)
}

/// The `name=value` of the `Set-Cookie` header.
fn cookie_of(answer: &Raw) -> String {
    let set = answer.header("set-cookie").unwrap_or_else(|| panic!("no cookie: {}", answer.head));
    assert!(set.contains("HttpOnly"), "{set}");
    set.split(';').next().unwrap().to_owned()
}

#[track_caller]
fn share(keyed: &Keyed, key: &str, job: &str, body: &Value) -> String {
    let made = keyed.post(key, &format!("/v1/jobs/{job}/shares"), body).expect(201).json();
    path_of(made["url"].as_str().unwrap())
}

/// Starts a job that echoes its callers' headers on a port until it is cancelled.
fn start_echo_job(keyed: &Keyed, key: &str) -> String {
    let steps = json!([
        {"tool": "write_file", "path": "echo.py", "content": ECHO},
        {"tool": "shell", "command": "python3 echo.py"}
    ]);
    let job = keyed.post(key, "/schedule", &json!({"steps": steps})).expect(202).json()["job_id"].clone();
    let job = job.as_str().unwrap().to_owned();
    let ports = format!("/v1/jobs/{job}/ports");
    wait_until("the job listens", || {
        let answer = keyed.get(key, &ports);
        answer.status == 200 && answer.text().contains("8123")
    });
    job
}

#[test]
fn job_origins_require_a_key_and_never_forward_it() {
    let keyed = start(Options::default());
    let (ada, bob) = (keyed.key("ada", "submitter", &json!({})), keyed.key("bob", "submitter", &json!({})));
    let viewer = keyed.key("eve", "viewer", &json!({}));
    let job = start_echo_job(&keyed, &ada);
    let origin = format!("{job}-8123.localhost:{}", keyed.server.port);
    let bearer = |key: &str| format!("Bearer {key}");

    let refused = ask(&keyed, &origin, "/", &[]);
    assert_eq!(refused.status, 401, "{}", refused.head);
    let page = ask(&keyed, &origin, "/", &[("Accept", "text/html")]);
    assert!(page.body.contains("Login required") && page.body.contains(&job), "{}", page.body);
    for key in [&bob, &viewer] {
        assert_eq!(ask(&keyed, &origin, "/", &[("Authorization", &bearer(key))]).status, 401);
    }
    assert_eq!(ask(&keyed, &origin, "/", &[("Authorization", "Bearer caisson_wrong")]).status, 401);

    let seen = ask(&keyed, &origin, "/", &[("Authorization", &bearer(&ada))]);
    assert_eq!(seen.status, 200, "{}", seen.head);
    let headers: Value = serde_json::from_str(&seen.body).unwrap();
    assert!(headers.get("authorization").is_none(), "{headers}");

    let token = format!("takeover-{}", "0".repeat(64));
    let shown = [("Authorization", bearer(&ada)), ("X-Caisson-Takeover", token.clone())];
    let shown = shown.each_ref().map(|(name, value)| (*name, value.as_str()));
    let seen = ask(&keyed, &origin, &format!("/?a=b&takeover={token}"), &shown);
    let headers: Value = serde_json::from_str(&seen.body).unwrap();
    assert_eq!(headers["x-path"], "/?a=b", "{headers}");
    assert!(!seen.body.contains("takeover"), "{}", seen.body);

    let login = keyed.server.post("/v1/session", &json!({"key": ada})).expect(200);
    let session = login.header("set-cookie").split(';').next().unwrap().to_owned();
    let cookies = format!("{session}; caisson_share_files=x; mine=1");
    let seen = ask(&keyed, &origin, "/", &[("Cookie", &cookies), ("Authorization", "Bearer of-the-app")]);
    assert_eq!(seen.status, 200, "{}", seen.head);
    let headers: Value = serde_json::from_str(&seen.body).unwrap();
    assert_eq!(headers["cookie"], "mine=1", "{headers}");
    assert_eq!(headers["authorization"], "Bearer of-the-app", "what is the app's own reaches it");
    assert!(!seen.body.contains("caisson_"), "{}", seen.body);

    let link = share(&keyed, &ada, &job, &json!({"view": "8123"}));
    let landed = ask(&keyed, &format!("localhost:{}", keyed.server.port), &link, &[]);
    assert_eq!(landed.status, 303, "{}", landed.head);
    let entrance = landed.header("location").unwrap().to_owned();
    assert!(entrance.starts_with(&format!("http://{origin}/?caisson-pass=")), "{entrance}");
    let api = format!("localhost:{}", keyed.server.port);
    let holding = ask(&keyed, &api, &format!("{link}?takeover={token}"), &[]);
    assert!(!holding.header("location").unwrap().contains("takeover"), "{}", holding.head);
    let notebook = share(&keyed, &ada, &job, &json!({"view": "notebook"}));
    let holding = ask(&keyed, &api, &format!("{notebook}?takeover={token}"), &[]);
    assert!(holding.header("location").unwrap().contains(&token), "{}", holding.head);
    let entered = ask(&keyed, &origin, &path_of(&entrance), &[]);
    assert_eq!((entered.status, entered.header("location")), (303, Some("/")), "{}", entered.head);
    let pass = cookie_of(&entered);
    let seen = ask(&keyed, &origin, "/", &[("Cookie", &format!("{pass}; mine=2"))]);
    assert_eq!(seen.status, 200, "{}", seen.head);
    assert_eq!(serde_json::from_str::<Value>(&seen.body).unwrap()["cookie"], "mine=2");

    let other = format!("{job}-8124.localhost:{}", keyed.server.port);
    assert_eq!(ask(&keyed, &other, "/", &[("Cookie", &pass)]).status, 401, "it is for one port");
    assert_eq!(ask(&keyed, &other, &path_of(&entrance), &[]).status, 410);
    let notebook = format!("{job}-jupyter.localhost:{}", keyed.server.port);
    for headers in [
        Vec::new(),
        vec![("Cookie", pass.clone())],
        vec![("Authorization", bearer(&bob))],
        vec![("Authorization", bearer(&viewer))],
    ] {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(ask(&keyed, &notebook, "/lab", &headers).status, 401, "{headers:?}");
    }
    assert_ne!(ask(&keyed, &notebook, "/lab", &[("Authorization", &bearer(&ada))]).status, 401);
    let api = format!("localhost:{}", keyed.server.port);
    assert_eq!(ask(&keyed, &api, "/v1/jobs", &[("Cookie", &pass)]).status, 401, "it is nothing to the API");
    keyed.post(&ada, &format!("/v1/jobs/{job}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&job, "cancelled");
}

#[test]
fn job_origins_use_the_configured_base_domain() {
    let config = "public_url = \"https://caisson.test\"\njob_domain = \"jobs.test\"\n";
    let keyed = start(Options { config: config.into(), ..Options::default() });
    let ada = keyed.key("ada", "submitter", &json!({}));
    let job = start_echo_job(&keyed, &ada);
    let origin = format!("{job}-8123.jobs.test");
    let bearer = format!("Bearer {ada}");

    let page = ask(&keyed, &origin, "/", &[("Accept", "text/html")]);
    assert_eq!(page.status, 401, "{}", page.head);
    assert!(page.body.contains(&format!("https://caisson.test/#/jobs/{job}")), "{}", page.body);
    let seen = ask(&keyed, &origin, "/", &[("Authorization", &bearer)]);
    assert_eq!(seen.status, 200, "{}", seen.head);
    let headers: Value = serde_json::from_str(&seen.body).unwrap();
    assert_eq!(
        (&headers["x-forwarded-proto"], &headers["x-forwarded-host"]),
        (&json!("https"), &json!(origin))
    );

    assert_eq!(ask(&keyed, "caisson.test", "/healthz", &[]).status, 200);
    for host in ["jobs.test", "caisson.jobs.test", "localhost.jobs.test", "x-80.jobs.test:8000"] {
        let answer = ask(&keyed, host, "/healthz", &[("Authorization", &bearer)]);
        assert_eq!(answer.status, 404, "the API answers at {host}: {}", answer.head);
    }
    let foreign = [("Authorization", bearer.as_str()), ("Origin", "https://evil.jobs.test")];
    assert_eq!(ask(&keyed, &origin, "/", &foreign).status, 403);
    let sister = format!("https://{job}-3000.jobs.test");
    let own = [("Authorization", bearer.as_str()), ("Origin", sister.as_str())];
    assert_eq!(ask(&keyed, &origin, "/", &own).status, 200);

    let link = share(&keyed, &ada, &job, &json!({"view": "8123"}));
    let landed = ask(&keyed, "caisson.test", &link, &[]);
    let entrance = landed.header("location").unwrap_or_default().to_owned();
    assert!(entrance.starts_with(&format!("https://{origin}/?caisson-pass=")), "{}", landed.head);
    let entered = ask(&keyed, &origin, &path_of(&entrance), &[]);
    let pass = cookie_of(&entered);
    assert_eq!(ask(&keyed, &origin, "/", &[("Cookie", &pass)]).status, 200);
    let session = keyed.get(&ada, "/v1/session").expect(200).json();
    assert_eq!(session["job_domain"], "jobs.test");
    keyed.post(&ada, &format!("/v1/jobs/{job}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&job, "cancelled");
}

#[test]
fn share_link_shows_one_view_of_one_job_until_it_expires() {
    let keyed = start(Options::default());
    let ada = keyed.key("ada", "submitter", &json!({}));
    let job = keyed.schedule(&ada, "echo text > a.txt");
    let other = keyed.schedule(&ada, "echo other > a.txt");
    keyed.wait_for(&job, "complete");
    keyed.wait_for(&other, "complete");
    let api = format!("127.0.0.1:{}", keyed.server.port);
    let link = share(&keyed, &ada, &job, &json!({"view": "files"}));
    let landed = ask(&keyed, &api, &link, &[]);
    assert_eq!(landed.status, 303, "{}", landed.head);
    assert_eq!(landed.header("location"), Some(format!("/#/shared/{job}/files").as_str()));
    let cookie = cookie_of(&landed);
    let with = |path: &str| ask(&keyed, &api, path, &[("Cookie", &cookie)]).status;
    assert_eq!(with(&format!("/v1/jobs/{job}/files/a.txt")), 200);
    for path in [
        format!("/v1/jobs/{other}/files/a.txt"),
        format!("/v1/jobs/{job}"),
        format!("/v1/jobs/{job}/log"),
        format!("/v1/jobs/{job}/events"),
        format!("/jobs/{job}/output.zip"),
        "/v1/jobs".into(),
        "/v1/keys".into(),
    ] {
        assert_eq!(with(&path), 401, "{path}");
    }
    let write = keyed.server.request(Method::PUT, &format!("/v1/jobs/{job}/files/a.txt"));
    let write = write.header("Cookie", &cookie).header("Origin", keyed.server.url(""));
    assert_eq!(keyed.server.send(write.body("new")).status, 401);

    let sealed = link.rsplit('/').next().unwrap();
    let direct = ask(&keyed, &api, &format!("/v1/jobs/{job}/files/a.txt?share={sealed}"), &[]);
    assert_eq!(direct.status, 200, "{}", direct.head);
    let changed = format!("/share/{}", sealed.replace(&job, &other));
    assert_eq!(ask(&keyed, &api, &changed, &[]).status, 410, "who changes a link has none");

    let output = share(&keyed, &ada, &job, &json!({"view": "output"}));
    let landed = ask(&keyed, &api, &output, &[]);
    let cookie_of_output = cookie_of(&landed);
    let zip = ask(&keyed, &api, landed.header("location").unwrap(), &[("Cookie", &cookie_of_output)]);
    assert_eq!(zip.status, 200, "{}", zip.head);

    let short = share(&keyed, &ada, &job, &json!({"view": "files", "for_s": 1}));
    wait_until("the short link is over", || ask(&keyed, &api, &short, &[]).status == 410);
    keyed.delete(&keyed.admin, "/v1/keys/ada").expect(204);
    assert_eq!(with(&format!("/v1/jobs/{job}/files/a.txt")), 401, "a link ends with the key of who made it");
    for (body, field) in [
        (json!({"view": "kitchen"}), "view"),
        (json!({"view": "files", "for_s": 0}), "for_s"),
        (json!({"view": "files", "for_s": 99_999_999}), "for_s"),
    ] {
        let answer = keyed.post(&keyed.admin, &format!("/v1/jobs/{job}/shares"), &body);
        answer.expect_problem(422, "invalid_field");
        assert_eq!(answer.json()["field"], field);
    }
}

#[test]
fn cli_creates_share_links() {
    let keyed = start(Options::default());
    let job = keyed.schedule(&keyed.admin, "true");
    keyed.wait_for(&job, "complete");
    let made = keyed.caisson(Some(&keyed.admin), &["share", &job, "events", "--for", "30m"]);
    assert!(made.status.success() && stderr(&made).contains("valid until"), "{}", stderr(&made));
    let api = format!("127.0.0.1:{}", keyed.server.port);
    let landed = ask(&keyed, &api, &path_of(stdout(&made).trim()), &[]);
    let cookie = cookie_of(&landed);
    let events = ask(&keyed, &api, landed.header("location").unwrap(), &[("Cookie", &cookie)]);
    assert!(events.status == 200 && events.body.contains("created"), "{}", events.body);
    let wrong = keyed.caisson(Some(&keyed.admin), &["share", &job, "events", "--for", "soon"]);
    assert!(stderr(&wrong).contains("30m"), "{}", stderr(&wrong));
}

#[test]
fn access_log_can_be_queried() {
    let keyed = start(Options::default());
    let ada = keyed.key("ada", "submitter", &json!({}));
    let job = keyed.schedule(&ada, "true");
    keyed.wait_for(&job, "complete");
    keyed.get(&ada, "/v1/keys").expect_problem(403, "role_too_weak");
    keyed.get(&ada, &format!("/v1/jobs/{job}")).expect(200);
    let entries = keyed.get(&keyed.admin, "/v1/access-log").expect(200).json()["entries"].clone();
    let told: Vec<(String, String, u64)> = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|deed| {
            let word = |name: &str| deed[name].as_str().unwrap_or_default().to_owned();
            (word("who"), format!("{} {}", word("method"), word("path")), deed["status"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(
        told,
        [
            ("ada".into(), "GET /v1/keys".into(), 403),
            ("ada".into(), "POST /schedule".into(), 202),
            ("root".into(), "POST /v1/keys".into(), 201),
            ("anybody".into(), "POST /v1/keys".into(), 201),
        ]
    );
    assert_eq!(entries[0]["from"], "127.0.0.1");
    let log = keyed.server.log();
    assert!(log.contains("who=\"ada\"") && log.contains("path=\"/schedule\""), "{log}");
    keyed.get(&keyed.admin, "/v1/access-log?limit=0").expect_problem(400, "invalid_query");
}
