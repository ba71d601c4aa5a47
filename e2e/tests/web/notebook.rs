//! The notebook pane: JupyterLab framed from its own origin, also during a takeover.

use e2e::{Browser, Options, Server, default_images, empty_notebook, run_cell};
use model::scripted::ScriptedAnswer;
use serde_json::json;

use crate::page_helpers::{has, model_of, open, press, set_look, shows, waiting_answer};

#[test]
fn holder_works_in_the_notebook_pane_and_others_are_view_only() {
    let answers = vec![
        ScriptedAnswer::calls(&[("python", json!({"code": "shared = 'from the agent'; print(shared)"}))]),
        waiting_answer(),
        ScriptedAnswer::calls(&[("finish", json!({"summary": "All done."}))]),
    ];
    let (model, config) = model_of(answers);
    let server = Server::start_with(Options { config, images: Some(default_images()), ..Options::default() });
    let job = server.schedule(&json!({"task": "share", "image": "default"}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    // Wide enough to show the kernel's name beside the timeline.
    set_look(&mut page, "light", 2400);
    page.wait_for("the agent waits", &shows("began"));
    job.put_file("mine.ipynb", empty_notebook().to_string()).expect(200);
    press(&mut page, "Take over");
    page.wait_for("it is taken over", &shows("Hand back"));
    press(&mut page, "Notebook");
    page.wait_for("the notebook is framed", &has("iframe[title=Notebook]"));
    let mut frame = browser.frame(&format!("{}-jupyter.localhost", job.id));
    frame.wait_for(
        "what the agent ran is there",
        "[...document.querySelectorAll('.jp-Notebook .cm-content')].some(cell => cell.innerText.includes('from the agent'))",
    );
    frame.leave("location.href = '/lab/tree/mine.ipynb'");
    run_cell(
        &mut frame,
        "open('by-hand.txt', 'w').write(shared + ' and a hand'); print('written')",
        "written",
    );
    let seen = job.get_file("by-hand.txt").expect(200).text();
    assert_eq!(seen, "from the agent and a hand");
    let seen = "JSON.stringify([location.href, document.referrer, ...performance.getEntries().map(entry => entry.name), \
                ...[...document.querySelectorAll('iframe')].map(frame => frame.src)])";
    let addresses = page.evaluate(seen).to_string() + &frame.evaluate(seen).to_string();
    assert!(!addresses.contains("takeover="), "no address ever has the token: {addresses}");
    // Another browser shows who has taken over.
    let other = Browser::start();
    let mut others = open(&other, &server, &format!("#/jobs/{}/notebook", job.id));
    others.wait_for("others may look", &shows("has taken over; you can only look."));
    press(&mut page, "Hand back");
    page.wait_for("the agent goes on", "!document.body.innerText.includes('Hand back')");
    job.put_file("go", "").expect(200);
    page.wait_for("to its end", &shows("All done."));
    let told = model.requests().last().unwrap().body.to_string();
    assert!(told.contains("made by-hand.txt"), "{told}");
}

#[test]
fn notebook_that_a_browser_denies_storage_is_offered_in_a_new_tab() {
    let server = Server::start_with(Options { images: Some(default_images()), ..Options::default() });
    let wait = json!({"tool": "shell", "command": "echo began; until [ -e go ]; do sleep 0.05; done"});
    let job = server.schedule(&json!({"image": "default", "steps": [wait]}));
    // Without partitions of their own, frames of another site have no storage.
    let browser = Browser::start_with(&["--disable-features=ThirdPartyStoragePartitioning"]);
    let mut page = open(&browser, &server, &format!("#/jobs/{}/notebook", job.id));
    page.wait_for("it is said", &shows("JupyterLab keeps reloading"));
    page.wait_for("the frame is gone", &format!("!({})", has("iframe[title=Notebook]")));
    press(&mut page, "Open in a new tab");
    let mut tab = browser.wait_for_page(&format!("{}-jupyter.localhost", job.id));
    tab.wait_for("it works in a tab", &has(".jp-LabShell"));
    job.touch("go");
    page.assert_no_exceptions();
}
