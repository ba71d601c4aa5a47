//! The tool `browser`: opens a page that a job serves, reads and uses it, and takes screenshots.

use e2e::images::default_images;
use e2e::{ExternalServer, Options, Server, host_name, respond, shell};
use serde_json::{Value, json};

const PAGE: &str = r#"<!doctype html><title>Shop</title><h1>Fruit</h1>
<form id=form><label>Kind <input id=kind></label><button>Order</button></form>
<p id=out></p><a href="data.csv" download>Data</a>
<script>
form.onsubmit = (event) => {
  event.preventDefault();
  console.log("order", kind.value);
  out.textContent = "You ordered " + kind.value;
};
fetch("missing.json");
</script>"#;

fn browser(action: Value) -> Value {
    let mut step = action;
    step["tool"] = json!("browser");
    step
}

#[test]
fn browser_tool_opens_reads_uses_and_screenshots_a_page() {
    let server = Server::start_with(Options { images: Some(default_images()), ..Options::default() });
    let steps = [
        json!({"tool": "write_file", "path": "site/index.html", "content": PAGE}),
        shell(
            "cd site && echo 1,2 > data.csv && (python3 -m http.server 8765 >/dev/null 2>&1 &); \
             until curl -so /dev/null http://127.0.0.1:8765/; do sleep 0.05; done",
        ),
        browser(json!({"action": "open", "url": "http://127.0.0.1:8765/"})),
        browser(json!({"action": "read", "format": "outline"})),
        browser(json!({"action": "fill", "ref": "e1", "value": "Äpfel"})),
        browser(json!({"action": "click", "text": "Order"})),
        browser(json!({"action": "wait", "text": "You ordered Äpfel"})),
        browser(json!({"action": "read"})),
        browser(json!({"action": "evaluate", "expression": "await Promise.resolve([1, document.title])"})),
        browser(json!({"action": "click", "selector": "a[download]"})),
        browser(json!({"action": "console"})),
        browser(json!({"action": "network"})),
        browser(json!({"action": "screenshot"})),
        shell("until [ -s downloads/data.csv ]; do sleep 0.05; done"),
        browser(json!({"action": "evaluate", "expression": "Promise.resolve(5)"})),
        browser(json!({"action": "evaluate", "expression": "(async () => ({deep: [7]}))()"})),
        browser(json!({"action": "evaluate", "expression": "({plain: document.title, list: [1, null]})"})),
        browser(json!({"action": "evaluate", "expression": "document.body.style.height = '3000px'; 'tall'"})),
        browser(json!({"action": "screenshot", "full_page": true})),
    ];
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    job.wait_for("complete");
    let mut follower = job.follow();
    follower.until_end();
    let ended = follower.events.iter().filter(|event| event.is("call_ended"));
    let ends: Vec<&Value> = ended.map(|event| &event.data()["result"]).collect();
    assert_eq!(ends[2]["title"], "Shop");
    let outline = ends[3]["outline"].as_str().unwrap();
    assert!(outline.starts_with("# Fruit\n[e1] input text \"Kind\"\n[e2] button \"Order\""), "{outline}");
    assert!(ends[7]["text"].as_str().unwrap().contains("You ordered Äpfel"), "{}", ends[7]);
    assert_eq!(ends[8]["value"], json!([1, "Shop"]));
    assert!(ends[10].to_string().contains("order Äpfel"), "{}", ends[10]);
    let requests = ends[11]["requests"].as_array().unwrap();
    let is_missing = |request: &Value| request["url"].as_str().unwrap().ends_with("missing.json");
    assert!(requests.iter().any(|request| is_missing(request) && request["status"] == 404), "{requests:?}");
    assert!(requests.iter().all(|request| request["failed"].is_null()), "{requests:?}");
    let picture = ends[12]["screenshot"]["digest"].as_str().unwrap();
    let picture = server.get(&format!("/v1/jobs/{}/pictures/{picture}", job.id)).expect(200);
    assert!(picture.body.starts_with(b"\x89PNG"));
    assert_eq!(job.output().text("downloads/data.csv"), "1,2\n");
    let values = [&ends[14]["value"], &ends[15]["value"], &ends[16]["value"], &ends[17]["value"]];
    let wanted =
        [&json!(5), &json!({"deep": [7]}), &json!({"plain": "Shop", "list": [1, null]}), &json!("tall")];
    assert_eq!(values, wanted);
    let (seen, whole) = (&ends[12]["screenshot"], &ends[18]["screenshot"]);
    assert!(seen["height"].as_u64().unwrap() < 800 && whole["height"].as_u64().unwrap() >= 3000, "{whole}");
    assert!(whole["width"].as_u64().unwrap() >= 1000, "{whole}");
}

#[test]
fn failed_browser_action_fails_the_step_with_a_reason() {
    let server = Server::start_with(Options { images: Some(default_images()), ..Options::default() });
    let bad = [
        (json!({"action": "open", "url": "http://127.0.0.1:8766/"}), "ERR_"),
        (json!({"action": "open", "url": "about:blank"}), ""),
        (json!({"action": "click", "text": "Nothing"}), "no such element"),
        (json!({"action": "fill", "selector": "][", "value": "x"}), "not a valid selector"),
        (json!({"action": "evaluate", "expression": "throw new Error('boom')"}), "boom"),
        (json!({"action": "evaluate", "expression": "Promise.reject(new Error('late boom'))"}), "late boom"),
        (json!({"action": "evaluate", "expression": "'x'.repeat(60_000_000)"}), "too large"),
        (json!({"action": "wait", "selector": "#never", "seconds": 0.2}), "within 0.2 s"),
        (json!({"action": "evaluate", "expression": "while (true) {}"}), "longer than 2 s"),
    ];
    let mut steps: Vec<Value> = bad.iter().map(|(action, _)| browser(action.clone())).collect();
    for step in &mut steps {
        step["continue_on_error"] = json!(true);
    }
    steps.last_mut().unwrap()["timeout_s"] = json!(2);
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    let status = job.wait();
    for (index, (action, wanted)) in bad.iter().enumerate().filter(|(_, (_, wanted))| !wanted.is_empty()) {
        let step = &status["steps"][index];
        assert_eq!(step["status"], "failed", "{action}: {step:#}");
        assert!(step["reason"].as_str().unwrap_or_default().contains(wanted), "{action}: {step:#}");
    }
    for url in ["javascript:alert(1)", "chrome://settings"] {
        let body = json!({"steps": [browser(json!({"action": "open", "url": url}))]});
        assert_eq!(server.post("/schedule", &body).expect(422).json()["field"], "steps[0].url");
    }
}

const DIALOGS: &str = r#"<!doctype html><title>Dialogs</title><p id=out>start</p>
<button onclick="out.textContent = confirm('sure?')">Ask</button>
<button onclick="setTimeout(() => { alert('late'); out.textContent = 'after'; }, 300)">Later</button>
<script>alert("hello"); onbeforeunload = (event) => event.preventDefault();</script>"#;

#[test]
fn dialogs_are_answered_and_never_block_the_browser() {
    let server = Server::start_with(Options { images: Some(default_images()), ..Options::default() });
    let endless = "setTimeout(() => { while (true) {} }, 0); 'begun'";
    let mut steps = vec![
        json!({"tool": "write_file", "path": "dialogs.html", "content": DIALOGS}),
        browser(json!({"action": "open", "url": "file:///workspace/dialogs.html"})),
        browser(json!({"action": "click", "text": "Ask"})),
        browser(json!({"action": "read"})),
        browser(json!({"action": "evaluate", "expression": "prompt('name?', 'nobody')"})),
        // This dialog opens while no client is connected to the page.
        browser(json!({"action": "click", "text": "Later"})),
        shell("sleep 2"),
        browser(json!({"action": "wait", "text": "after", "seconds": 60})),
        browser(json!({"action": "open", "url": "data:text/html,<p>left"})),
        browser(json!({"action": "evaluate", "expression": endless})),
        browser(json!({"action": "read"})),
        browser(json!({"action": "open", "url": "data:text/html,<p>free again"})),
        browser(json!({"action": "read"})),
    ];
    steps[10]["continue_on_error"] = json!(true);
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    let status = job.wait_for("complete");
    let mut follower = job.follow();
    follower.until_end();
    let ended = follower.events.iter().filter(|event| event.is("call_ended"));
    let ends: Vec<&Value> = ended.map(|event| &event.data()["result"]).collect();
    assert_eq!(ends[1]["dialogs"], json!([{"type": "alert", "message": "hello"}]), "{}", ends[1]);
    assert_eq!(ends[2]["dialogs"], json!([{"type": "confirm", "message": "sure?"}]), "{}", ends[2]);
    assert!(ends[3]["text"].as_str().unwrap().starts_with("true"), "{}", ends[3]);
    assert_eq!(ends[4]["value"], "nobody", "{}", ends[4]);
    assert_eq!(ends[8]["dialogs"][0]["type"], "beforeunload", "{}", ends[8]);
    let busy = &status["steps"][10];
    assert_eq!((&busy["status"], &busy["code"]), (&json!("failed"), &json!("timeout")), "{busy:#}");
    assert!(busy["reason"].as_str().unwrap().contains("the page is busy; open another one"), "{busy:#}");
    assert_eq!(ends[12]["text"], "free again", "{}", ends[12]);
}

#[test]
fn restarted_browser_does_not_present_an_empty_page_as_the_old_one() {
    let config = "[desktop]\nidle_s = 8\n".to_owned();
    let server = Server::start_with(Options { images: Some(default_images()), config, ..Options::default() });
    let gone = "while pgrep -x chromium >/dev/null; do sleep 0.05; done";
    let open = || browser(json!({"action": "open", "url": "data:text/html,<p>here"}));
    let mut read = browser(json!({"action": "read"}));
    read["continue_on_error"] = json!(true);
    let steps = [
        browser(json!({"action": "read"})),
        open(),
        // Desktop actions keep the desktop, and with it the browser, running past the idle timeout.
        json!({"tool": "gui", "action": "wait", "seconds": 12}),
        browser(json!({"action": "read"})),
        shell(gone),
        read.clone(),
        open(),
        browser(json!({"action": "read"})),
        shell(&format!("pkill -KILL -x chromium; {gone}")),
        read.clone(),
        open(),
        browser(json!({"action": "read"})),
    ];
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    let status = job.wait_for("complete");
    for index in [5, 9] {
        let step = &status["steps"][index];
        assert_eq!(
            (&step["status"], &step["code"]),
            (&json!("failed"), &json!("browser_restarted")),
            "{step:#}"
        );
        assert!(step["reason"].as_str().unwrap().contains("open it again"), "{step:#}");
    }
    let mut follower = job.follow();
    follower.until_end();
    let ended = follower.events.iter().filter(|event| event.is("call_ended"));
    let ends: Vec<&Value> = ended.map(|event| &event.data()["result"]).collect();
    for index in [3, 7, 11] {
        assert_eq!(ends[index]["text"], "here", "{}", ends[index]);
    }
}

const SIGN_IN: &str = r#"<!doctype html><title>Sign in</title><form action=/welcome>
<label>Name <input name=name autocomplete=name></label><label>Street <input name=street autocomplete=street-address></label>
<label>Mail <input name=mail type=email autocomplete=username></label>
<label>Password <input name=password type=password autocomplete=current-password></label>
<label>Note <textarea name=note></textarea></label><button>Sign in</button></form>"#;

/// Longer than Chromium waits after its start before it looks for updates of components, which is a minute.
const IDLE_SECONDS: u32 = 100;

#[test]
fn browser_connects_only_to_the_hosts_of_pages() {
    let outside = ExternalServer::http_on_host_name(|head, client| match head.split(' ').nth(1) {
        Some(path) if path.starts_with("/welcome") => {
            respond(client, b"<!doctype html><title>Welcome</title><p>signed in")
        }
        _ => respond(client, SIGN_IN.as_bytes()),
    });
    let config = format!("[egress]\nallow_ranges = [\"{}\"]\n", outside.address);
    let server = Server::start_with(Options { images: Some(default_images()), config, ..Options::default() });
    let place = format!("{}:{}", host_name(), outside.port);
    let fill = |name: &str, value: &str| {
        browser(json!({"action": "fill", "selector": format!("[name={name}]"), "value": value}))
    };
    let steps = [
        browser(json!({"action": "open", "url": format!("http://{place}/")})),
        fill("name", "Ada Example"),
        fill("street", "1 Long Strete"),
        fill("mail", "ada@example.org"),
        fill("password", "correct horse"),
        fill("note", "a wrod that is mispelled"),
        browser(json!({"action": "click", "text": "Sign in"})),
        browser(json!({"action": "wait", "text": "signed in"})),
        browser(json!({"action": "wait", "seconds": IDLE_SECONDS})),
        // A browser that a person opens has another profile.
        json!({"tool": "gui", "action": "launch", "command": "chromium"}),
        browser(json!({"action": "wait", "seconds": IDLE_SECONDS / 5})),
    ];
    let job = server.schedule(&json!({"steps": steps, "image": "default", "egress": {"allow": [place]}}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    let network = job.get("network").expect(200).json();
    let connections = network["connections"].as_array().unwrap();
    let to_page = |connection: &&Value| {
        connection["host"] == host_name()
            && connection["port"] == outside.port
            && connection["verdict"] == "allowed"
    };
    let (own, others): (Vec<&Value>, Vec<&Value>) = connections.iter().partition(to_page);
    assert!(!own.is_empty(), "the page was not loaded through the proxy: {network:#}");
    assert!(others.is_empty(), "{others:#?}");
    assert_eq!(network["totals"]["refused"], 0, "{network:#}");
    assert_eq!(events.count(|event| event.is("input_requested")), 0, "{}", events.summary());
    let heads = outside.heads();
    assert!(heads.iter().any(|head| head.contains("/welcome?name=Ada")), "{heads:#?}");
}
