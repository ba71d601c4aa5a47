//! The whole default image as a container, exported and imported as the manual says, with live code, the desktop, the
//! browser and a recording.

use e2e::{Engine, shell};
use serde_json::{Value, json};

use crate::default_image_import;

fn with(tool: &str, step: Value) -> Value {
    let mut step = step;
    step["tool"] = json!(tool);
    step
}

#[test]
fn kernels_desktop_and_browser_work_in_a_container() {
    let engine = Engine::get();
    let image = default_image_import::import(&engine);
    let server = engine.serve(&format!("image = {image:?}"));
    let steps = [
        with("python", json!({"code": "x = 41"})),
        with("python", json!({"code": "print(x + 1)"})),
        with("typescript", json!({"code": "const y: number = 7; console.log(y * 6)"})),
        with(
            "gui",
            json!({"action": "launch", "command": "xterm -T Form -geometry 100x40+0+0 -e 'cat > typed.txt'"}),
        ),
        with("gui", json!({"action": "wait", "window": "Form", "seconds": 60})),
        with("gui", json!({"action": "focus", "window": "Form"})),
        with("gui", json!({"action": "type", "text": "Grüße, 日本語\n"})),
        shell("until [ -s typed.txt ]; do sleep 0.05; done"),
        shell("mkdir site && echo '<title>Shop</title><h1>Fruit</h1>' > site/index.html"),
        shell(
            "(cd site && setsid python3 -m http.server 8123 >/dev/null 2>&1 &); \
             until curl -so /dev/null http://127.0.0.1:8123/; do sleep 0.05; done",
        ),
        with("browser", json!({"action": "open", "url": "http://127.0.0.1:8123/"})),
        with("browser", json!({"action": "read"})),
        with("browser", json!({"action": "screenshot"})),
    ];
    let desktop = json!({"record": "timelapse"});
    let job = server.schedule(&json!({"steps": steps, "desktop": desktop, "limits": {"memory_mib": 3000}}));
    job.wait_for("complete");
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.output("step-2.1", "stdout"), "42\n", "{}", events.summary());
    assert_eq!(events.output("step-3.1", "stdout"), "42\n", "{}", events.summary());
    let ends: Vec<&Value> = events
        .events
        .iter()
        .filter(|event| event.is("call_ended"))
        .map(|event| &event.data()["result"])
        .collect();
    assert!(ends[11]["text"].as_str().unwrap_or_default().contains("Fruit"), "{}", ends[11]);
    assert_eq!(ends[12]["screenshot"]["media_type"], "image/png", "{}", ends[12]);
    let mut output = job.output();
    assert_eq!(output.text("typed.txt"), "Grüße, 日本語\n");
    assert!(job.download("desktop.apng").body.starts_with(b"\x89PNG"));
    engine.assert_nothing_left(&server);
}
