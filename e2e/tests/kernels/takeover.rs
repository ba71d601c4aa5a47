//! The notebook during a takeover: the holder works on the agent's kernel, others can only look, and the agent waits
//! and is informed at the handback.

use e2e::{Browser, Job, Options, Server, Socket, default_images, empty_notebook, run_cell};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use reqwest::Method;
use serde_json::{Value, json};

fn call(name: &str, arguments: Value) -> ScriptedAnswer {
    ScriptedAnswer::calls(&[(name, arguments)])
}

fn server(model: &ScriptedServer) -> Server {
    let config = format!("[model]\nname = \"http://{}/v1\"\n", model.address());
    Server::start_with(Options { config, images: Some(default_images()), ..Options::default() })
}

/// Asserts what a client without the takeover token gets at the notebook's address.
fn assert_others_only_look(server: &Server, job: &Job<'_>) {
    let host = format!("{}-jupyter.localhost:{}", job.id, server.port);
    let at = |method: Method, path: &str| server.send(server.request(method, path).header("Host", &host));
    at(Method::GET, "/api/contents/mine.ipynb").expect(200);
    let problem = at(Method::POST, "/api/kernels").expect(409).json();
    assert_eq!(problem["code"], "taken_over", "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("Ada has taken over"), "{problem}");
    let kernels = at(Method::GET, "/api/kernels").expect(200).json();
    let kernel = kernels[0]["id"].as_str().unwrap_or_else(|| panic!("no kernel: {kernels}"));
    let refused = Socket::try_open(server, &format!("/api/kernels/{kernel}/channels"), &[("host", &host)]);
    assert_eq!(refused.err().map(|(status, _)| status), Some(409), "a kernel is not spoken to either");
}

#[test]
fn holder_uses_the_agents_kernel_and_the_agent_is_informed_afterwards() {
    let python = |code: &str| call("python", json!({ "code": code }));
    let wait =
        call("shell", json!({"command": "echo began; until [ -e go ]; do sleep 0.05; done", "wait_s": 300}));
    let answers = vec![
        python("shared = 'from the agent'; print(shared)"),
        wait,
        python("print(shared)"),
        call("finish", json!({"summary": "It is done."})),
    ];
    let model =
        ScriptedServer::start_on_thread(Script { order: Order::Turns, ..Script::of(answers) }).unwrap();
    let server = server(&model);
    let job = server.schedule(&json!({"task": "share the kernel", "image": "default"}));
    let mut events = job.follow();
    events.until("the agent waits", |event| event.is("call_output") && event.call() == "turn-2-1.1");
    job.put_file("mine.ipynb", empty_notebook().to_string()).expect(200);
    let token = job.post("takeover", &json!({"by": "Ada"})).expect(202).json()["token"].clone();
    let token = token.as_str().unwrap();
    job.put_file_as("go", "", token).expect(200);
    events.until("paused", |event| event.is_state("paused") && event.data()["code"] == "takeover");
    let browser = Browser::start();
    let origin = format!("http://{}-jupyter.localhost:{}", job.id, server.port);
    let mut page = browser.open(&format!("{origin}/lab/tree/mine.ipynb?takeover={token}"));
    let code = "shared += ' and Ada'; open('by-ada.txt', 'w').write(shared); print('written')";
    run_cell(&mut page, code, "written");
    assert!(
        !page.evaluate("location.href").to_string().contains(token),
        "the address does not show the token"
    );
    assert_others_only_look(&server, &job);
    let started = |events: &e2e::Follower<'_>| {
        events.count(|event| event.is("call_started") && event.call() == "turn-3-1.1")
    };
    assert_eq!(started(&events), 0, "the agent waits: {}", events.summary());
    let handback = server.request(Method::POST, &format!("/v1/jobs/{}/handback", job.id));
    server.send(handback.header("X-Caisson-Takeover", token)).expect(202);
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert!(events.output("turn-3-1.1", "").contains("from the agent and Ada"), "{}", events.summary());
    let told = model.requests()[2].body.to_string();
    assert!(told.contains("Ada") && told.contains("made by-ada.txt"), "{told}");
}
