//! The lifetime of a desktop: it stops when idle, survives a crash of the server, and can be recorded.

use e2e::images::default_images;
use e2e::{Options, Server, shell, wait_until};
use serde_json::{Value, json};

fn server_with(config: &str) -> Server {
    Server::start_with(Options {
        images: Some(default_images()),
        config: config.into(),
        ..Options::default()
    })
}

fn gui(action: Value) -> Value {
    let mut step = action;
    step["tool"] = json!("gui");
    step
}

#[test]
fn idle_desktop_is_stopped_and_restarts_on_use() {
    let server = server_with("[desktop]\nidle_s = 1\n");
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    for _ in 0..2 {
        sandbox.get("screenshot").expect(200);
        wait_until("X server and window manager are gone", || {
            sandbox.exec("pidof Xvnc icewm || echo none")["stdout"] == "none\n"
        });
    }
    let left = sandbox.exec("ls -A /tmp/.X11-unix; ls ~/.cache/caisson/vnc 2>&1");
    assert!(!left["stdout"].as_str().unwrap().contains("X1"), "{left}");
}

#[test]
fn desktop_action_survives_a_killed_server_and_runs_once() {
    let server = server_with("");
    let steps = [
        gui(json!({"action": "launch", "command": "echo once >> launched.txt; exec xterm -T First -e cat"})),
        gui(json!({"action": "wait", "window": "First", "seconds": 60})),
        gui(json!({"action": "wait", "window": "Second", "seconds": 300})),
        gui(json!({"action": "type", "text": "typed"})),
        shell("cat launched.txt"),
    ];
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    let mut events = job.follow();
    events.until("it waits for the second window", |event| {
        event.is("call_started") && event.call() == "step-3.1"
    });
    server.kill9();
    server.restart();
    let opened = job.exec("DISPLAY=:1 setsid xterm -T Second -e cat >/dev/null 2>&1 &").expect(200).json();
    assert_eq!(opened["exit_code"], 0, "{opened}");
    job.wait_for("complete");
    let mut replay = job.follow();
    replay.until_end();
    for number in 1..=5 {
        let call = format!("step-{number}.1");
        let ends = replay.count(|event| event.is("call_ended") && event.call() == call);
        assert_eq!(ends, 1, "{call}: {}", replay.summary());
    }
    assert_eq!(replay.output("step-5.1", "stdout"), "once\n", "{}", replay.summary());
}

/// Opens a recording with another decoder and prints the number of frames, their size, and the color of one pixel in
/// the first and in the last frame.
const LOOK: &str = r#"
from PIL import Image
film = Image.open("film.apng")
seen = []
for number in (0, film.n_frames - 1):
    film.seek(number)
    seen.append(film.convert("RGB").getpixel((300, 200)))
print(film.n_frames, film.size, *seen)
"#;

#[test]
fn desktop_recording_is_in_the_zip_and_decodable_elsewhere() {
    let server = server_with("");
    let steps = [
        gui(json!({"action": "windows"})),
        shell("until [ -s .caisson/desktop.apng ]; do sleep 0.05; done"),
        gui(
            json!({"action": "launch", "command": "xterm -T Shell -bg '#203040' -geometry 100x40+0+0 -e cat"}),
        ),
        gui(json!({"action": "wait", "window": "Shell", "seconds": 60})),
        gui(json!({"action": "type", "text": "this is recorded"})),
    ];
    let desktop = json!({"width": 640, "height": 480, "record": "video"});
    let job = server.schedule(&json!({"image": "default", "desktop": desktop, "steps": steps}));
    job.wait_for("complete");
    let film = job.download("desktop.apng").body;
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    sandbox.put_file("film.apng", film);
    sandbox.put_file("look.py", LOOK);
    let seen = sandbox.exec("python3 look.py");
    let words = seen["stdout"].as_str().unwrap();
    let (frames, rest) = words.split_once(' ').unwrap_or_else(|| panic!("{seen}"));
    assert!(frames.parse::<u32>().unwrap() >= 2, "{seen}");
    assert!(rest.starts_with("(640, 480) ") && rest.ends_with(" (32, 48, 64)\n"), "{seen}");
    assert!(rest.matches("(32, 48, 64)").count() == 1, "the window was there from the start: {seen}");
    let wrong = json!({"steps": [shell("true")], "desktop": {"record": "mp4"}});
    let refused = server.post("/schedule", &wrong).expect(422).text();
    assert!(refused.contains("timelapse") && refused.contains("video"), "{refused}");
}
