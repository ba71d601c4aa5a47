//! Files dropped on the page, on drop targets and beside them.

use std::path::Path;

use e2e::{Browser, Page, Server};
use serde_json::json;

use crate::page_helpers::{has, open, press, shows};

/// Drops files in the middle of an element, as a file manager does.
#[track_caller]
fn drop_on(page: &mut Page, selector: &str, files: &[&Path]) {
    page.wait_for(&format!("there is {selector}"), &has(selector));
    let place = page.evaluate(&format!(
        "(() => {{ const box = document.querySelector({}).getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
        json!(selector)
    ));
    for kind in ["dragEnter", "dragOver", "drop"] {
        let data = json!({"items": [], "files": files, "dragOperationsMask": 1});
        page.ask(
            "Input.dispatchDragEvent",
            &json!({"type": kind, "x": place[0], "y": place[1], "data": data}),
        );
    }
}

#[test]
fn files_can_be_dropped_on_the_start_page_and_misses_are_ignored() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("dropped.txt");
    std::fs::write(&file, "it was dropped\n").unwrap();
    let folder = here.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("deep.txt"), "deep\n").unwrap();
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/steps");
    page.wait_for("the editor is there", &has(".cm-content"));
    page.evaluate("globalThis.isStill = true");
    drop_on(&mut page, "h1", &[&file]);
    drop_on(&mut page, ".foot", &[&file, &folder]);
    for name in ["dropped.txt", "folder/deep.txt"] {
        page.wait_for(
            &format!("{name} is listed"),
            &format!("document.querySelector('ul.files')?.innerText.includes('{name}')"),
        );
    }
    assert_eq!(
        page.evaluate("globalThis.isStill === true && document.querySelectorAll('ul.files li').length"),
        2
    );
    press(&mut page, "Start");
    page.wait_for("the job is over", &shows("Complete"));
    let id = page.evaluate("location.hash.slice(7, 43)");
    let mut output = server.job(id.as_str().unwrap()).output();
    assert_eq!(output.text("dropped.txt"), "it was dropped\n");
    assert_eq!(output.text("folder/deep.txt"), "deep\n");
    page.assert_no_exceptions();
}

#[test]
fn files_can_be_dropped_into_the_files_pane() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("dropped.txt");
    std::fs::write(&file, "it was dropped\n").unwrap();
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [{"tool": "shell", "command": "until [ -e dropped.txt ]; do sleep 0.05; done; until [ -e go ]; do sleep 0.05; done"}]}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    page.wait_for("the job runs", &shows("until [ -e dropped.txt ]"));
    drop_on(&mut page, ".viewer", &[&file]);
    page.wait_for(
        "it is listed",
        "[...document.querySelectorAll('.entry')].some(entry => entry.innerText.trim() === 'dropped.txt')",
    );
    assert_eq!(job.get_file("dropped.txt").expect(200).text(), "it was dropped\n");
    job.touch("go");
    page.wait_for("the job goes on", &shows("Complete"));
    page.assert_no_exceptions();
}
