//! An agent that uses the desktop and the browser of the default image, driven by a scripted model with vision.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use e2e::images::{add_small, default_images};
use e2e::{Options, Server};
use model::scripted::{Order, Script, ScriptedServer};
use serde_json::{Value, json};

use crate::scripted::{call, finish, shell};

/// Starts a server with a vision model: the model's name implies vision, its address is the scripted server's.
fn server_with_vision_model(script: Script) -> (Server, ScriptedServer) {
    let model = ScriptedServer::start_on_thread(script).unwrap();
    let config = format!(
        "[model]\nname = \"anthropic/claude-sonnet-5\"\nbase_url = \"http://{}/v1\"\n",
        model.address()
    );
    let options = Options { config, images: Some(default_images()), ..Options::default() };
    (Server::start_with(options), model)
}

fn turns(answers: Vec<model::scripted::ScriptedAnswer>) -> Script {
    Script { order: Order::Turns, ..Script::of(answers) }
}

/// A window with a field and a button at known positions; the button writes the field's text to a file.
const PROGRAM: &str = r#"
import tkinter
root = tkinter.Tk(className="Form")
root.title("Form")
root.geometry("400x200+200+150")
root.configure(background="green")
field = tkinter.Entry(root)
field.place(x=20, y=20, width=300, height=30)
def save():
    open("/workspace/answer.txt", "w").write(field.get())
button = tkinter.Button(root, text="Save", command=save)
button.place(x=20, y=80, width=100, height=40)
# The window is there before what is in it.
button.wait_visibility()
open("/workspace/ready", "w").close()
root.mainloop()
"#;

/// The images in a request to the model, newest last.
fn pictures(body: &Value) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let blocks = body["messages"].as_array().into_iter().flatten();
    for block in blocks.flat_map(|message| message["content"].as_array().into_iter().flatten()) {
        for part in block["content"].as_array().into_iter().flatten() {
            if let Some(data) = part["source"]["data"].as_str() {
                assert_eq!(part["source"]["media_type"], "image/png");
                found.push(STANDARD.decode(data).unwrap());
            }
        }
    }
    found
}

#[test]
fn vision_model_completes_a_desktop_task() {
    let words = "seen by the model";
    let (server, model) = server_with_vision_model(turns(vec![
        call("write_file", json!({"path": "form.py", "content": PROGRAM})),
        call("gui", json!({"action": "launch", "command": "python3 form.py"})),
        call("gui", json!({"action": "wait", "window": "Form", "seconds": 60})),
        shell("until [ -e ready ]; do sleep 0.05; done"),
        call("screenshot", json!({"save_as": "before.png"})),
        call("gui", json!({"action": "click", "x": 300, "y": 215})),
        call("gui", json!({"action": "type", "text": words, "screenshot": true})),
        call("gui", json!({"action": "click", "x": 270, "y": 275})),
        shell("echo display $DISPLAY; until [ -s answer.txt ]; do sleep 0.05; done; cat answer.txt"),
        finish(),
    ]));
    let job = server.schedule(&json!({
        "task": "Fill in the form", "image": "default",
        "acceptance": [format!("grep -qx '{words}' answer.txt")],
    }));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    let mut zip = job.output();
    assert_eq!(zip.text("answer.txt"), words);
    let requests = model.requests();
    let offered = requests[0].body["tools"].to_string();
    assert!(["gui", "screenshot", "browser"].iter().all(|tool| offered.contains(&format!("\"{tool}\""))));
    // The model is shown the actual screen: it changes after typing, and the file has the typed text.
    let first = pictures(&requests[5].body);
    assert_eq!(first.len(), 1);
    assert!(first[0].starts_with(b"\x89PNG\r\n\x1a\n"));
    assert_eq!(zip.read("before.png"), first[0]);
    let both = pictures(&requests[7].body);
    assert_eq!(both.len(), 2);
    assert!(both[0] == first[0] && both[1] != first[0]);
    assert!(requests[5].body.to_string().contains("\\\"Form\\\" at "), "the windows are told too");
    // The log contains the image's name; the bytes are fetched by that name.
    let shown = events.events.iter().find(|event| event.is("call_ended") && event.call() == "turn-5-1.1");
    let image = &shown.unwrap().data()["result"]["images"][0];
    assert_eq!((&image["width"], &image["height"]), (&json!(1280), &json!(800)), "{image}");
    let picture = job.get(&format!("pictures/{}", image["digest"].as_str().unwrap())).expect(200);
    assert_eq!(picture.body, first[0]);
    let display = events.output("turn-9-1.1", "stdout");
    assert!(display.starts_with("display :"), "programs find the desktop once it was used: {display}");
    server.assert_nothing_left();
}

#[test]
fn agent_builds_serves_and_screenshots_a_react_app() {
    let dialogue = include_str!("../../../crates/caisson/src/demo/todo_app.json");
    let (server, model) = server_with_vision_model(Script::parse(dialogue).unwrap());
    let body = json!({
        "task": "Build me a todo app in React", "image": "default", "egress": "packages",
        "acceptance": ["test -f dist/index.html", "test -s screenshot.png"],
    });
    let job = server.schedule(&body);
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    let mut zip = job.output();
    assert!(zip.text("dist/index.html").contains("<div id=\"root\">"));
    let picture = zip.read("screenshot.png");
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n") && picture.len() > 2000, "{} bytes", picture.len());
    let seen = model.requests().last().map(|request| pictures(&request.body)).unwrap();
    assert_eq!(seen, [picture], "the model has seen what is in the zip");
    let failed = |event: &&e2e::Event| event.is("call_ended") && event.data()["status"] != "succeeded";
    assert_eq!(events.events.iter().filter(failed).count(), 0, "{}", events.summary());
}

#[test]
fn desktop_tools_are_not_offered_without_a_desktop_in_the_image() {
    let folder = tempfile::tempdir().unwrap();
    add_small(folder.path(), "small");
    let model = ScriptedServer::start_on_thread(turns(vec![
        call("browser", json!({"action": "open", "url": "http://localhost/"})),
        finish(),
    ]))
    .unwrap();
    let config = crate::scripted::model_section(&format!("http://{}/v1", model.address()));
    let images = Some(folder.path().to_owned());
    let server = Server::start_with(Options { config, images, ..Options::default() });
    let job = server.schedule(&json!({"task": "look", "image": "small"}));
    job.wait_for("complete");
    let offered = model.requests()[0].body["tools"].to_string();
    assert!(!offered.contains("\"browser\"") && !offered.contains("\"gui\""), "{offered}");
    let told = model.requests()[1].body.to_string();
    assert!(told.contains("there is no tool `browser`"), "{told}");
}
