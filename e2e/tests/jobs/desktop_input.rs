//! Mouse and keyboard as programs see them: buttons, wheel, dragging, held keys, and characters that are on no
//! keyboard.

use e2e::images::default_images;
use e2e::{Options, Server, shell};
use serde_json::{Value, json};

/// A window at a known position that logs its input events, one per line.
const CANVAS: &str = r#"
import tkinter
root = tkinter.Tk(className="Canvas")
root.title("Canvas")
root.geometry("400x300+200+150")
canvas = tkinter.Canvas(root, width=400, height=300)
canvas.pack()
log = open("/workspace/seen.txt", "w", buffering=1)
def held(event):
    return "".join(name for bit, name in [(1, " shift"), (4, " control"), (8, " alt")] if event.state & bit)
def say(word):
    return lambda event: print(word, event.x, event.y, held(event), file=log, sep=" ")
for button in (1, 2, 3, 4, 5):
    canvas.bind(f"<ButtonPress-{button}>", say(f"press {button}"))
canvas.bind("<ButtonRelease-1>", say("release 1"))
canvas.bind("<B1-Motion>", say("moved with 1"))
root.bind("<Control-Key-k>", lambda event: print("control k", file=log))
# The window is there before what is in it.
canvas.wait_visibility()
open("/workspace/ready", "w").close()
root.mainloop()
"#;

fn gui(action: Value) -> Value {
    let mut step = action;
    step["tool"] = json!("gui");
    step
}

fn server() -> Server {
    Server::start_with(Options { images: Some(default_images()), ..Options::default() })
}

#[test]
fn mouse_buttons_wheel_drag_and_held_keys_reach_a_program() {
    let server = server();
    let steps = [
        json!({"tool": "write_file", "path": "canvas.py", "content": CANVAS}),
        gui(json!({"action": "launch", "command": "python3 canvas.py"})),
        gui(json!({"action": "wait", "window": "Canvas", "seconds": 60})),
        shell("until [ -e ready ]; do sleep 0.05; done"),
        gui(json!({"action": "click", "x": 400, "y": 300, "button": "right"})),
        gui(json!({"action": "click", "x": 400, "y": 300, "modifiers": ["ctrl", "shift"]})),
        gui(json!({"action": "scroll", "x": 400, "y": 300, "down": 2})),
        gui(json!({"action": "scroll", "x": 400, "y": 300, "down": -1})),
        gui(json!({"action": "drag", "from_x": 350, "from_y": 250, "to_x": 450, "to_y": 350})),
        gui(json!({"action": "key", "keys": "ctrl+k"})),
        shell("until grep -q 'control k' seen.txt; do sleep 0.05; done; cat seen.txt"),
    ];
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    job.wait_for("complete");
    let seen = job.output().text("seen.txt");
    let lines: Vec<&str> = seen.lines().collect();
    let first = |word: &str| lines.iter().find(|line| line.starts_with(word)).copied().unwrap_or_default();
    let count = |word: &str| lines.iter().filter(|line| line.starts_with(word)).count();
    let place = |line: &str| -> (i32, i32) {
        let numbers: Vec<i32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [_, x, y] => (x, y),
            _ => panic!("no place in `{line}`: {seen}"),
        }
    };
    assert_eq!((count("press 3"), count("press 5"), count("press 4")), (1, 2, 1), "{seen}");
    let held = first("press 1");
    assert!(held.contains("control") && held.contains("shift"), "{seen}");
    let right = place(first("press 3"));
    assert_eq!(place(held), right, "both clicks were at the same place: {seen}");
    // The drag starts at the requested point, moves with the button held, and ends 100 pixels further.
    let pressed = lines.iter().rposition(|line| line.starts_with("press 1")).unwrap();
    let released = lines.iter().rposition(|line| line.starts_with("release 1")).unwrap();
    let (from, to) = (place(lines[pressed]), place(lines[released]));
    assert_eq!((to.0 - from.0, to.1 - from.1), (100, 100), "{seen}");
    assert_eq!((from.0 - right.0, from.1 - right.1), (-50, -50), "{seen}");
    assert!(lines[pressed..released].iter().any(|line| line.starts_with("moved with 1")), "{seen}");
}

#[test]
fn characters_missing_on_the_keyboard_are_typed_correctly() {
    let server = server();
    // Includes characters beyond the Basic Multilingual Plane.
    let text = "ß€ñ漢字かなカナ한글ქართული العربية 😀🚀";
    let steps = [
        gui(json!({
            "action": "launch",
            "command": "xterm -T Typed -e sh -c 'touch ready; head -n 1 > typed.new; mv typed.new typed.txt'"
        })),
        gui(json!({"action": "wait", "window": "Typed", "seconds": 60})),
        shell("until [ -e ready ]; do sleep 0.05; done"),
        gui(json!({"action": "focus", "window": "Typed"})),
        gui(json!({"action": "type", "text": format!("{text}\n")})),
        shell("until [ -e typed.txt ]; do sleep 0.05; done"),
    ];
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    job.wait_for("complete");
    assert_eq!(job.output().text("typed.txt"), format!("{text}\n"));
}
