//! The files pane: it saves what was edited, byte by byte; files as they were at the start; uploads and downloads.

use e2e::{Browser, Job, Page, Server, wait_until};
use serde_json::{Value, json};

use crate::page_helpers::{
    choose_files, has, hold_back_responses, key, open, press, release_responses, shows, wait_for_download,
    write,
};

const WAITS: &str = "until [ -e go ]; do sleep 0.05; done";

fn editor(text: &str) -> String {
    format!("document.querySelector('.viewer .cm-content')?.innerText.includes({})", json!(text))
}

/// Selects a file in the tree.
#[track_caller]
fn choose(page: &mut Page, name: &str) {
    let entry = format!(
        "[...document.querySelectorAll('.entry')].find(entry => entry.innerText.trim() === {})",
        json!(name)
    );
    page.wait_for(&format!("{name} is listed"), &format!("{entry} !== undefined"));
    page.act(&format!("{entry}.click()"));
}

/// Creates a draft with these files and starts it.
fn with_files<'a>(server: &'a Server, files: &[(&str, &[u8])], steps: &Value) -> Job<'a> {
    let job = server.schedule(&json!({"start": false, "steps": steps}));
    for (path, content) in files {
        job.put_file(path, content.to_vec()).expect(200);
    }
    job.post("start", &json!({})).expect(202);
    job
}

#[test]
fn late_response_is_not_shown_for_another_file() {
    let server = Server::start();
    let files: [(&str, &[u8]); 2] = [("slow.txt", b"the slow one\n"), ("quick.txt", b"the quick one\n")];
    let job = with_files(&server, &files, &json!([{"tool": "shell", "command": WAITS}]));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    page.wait_for("the files are listed", &shows("slow.txt"));
    hold_back_responses(&mut page, "GET", "files/slow.txt");
    choose(&mut page, "slow.txt");
    page.wait_for("it is asked for", "globalThis.held.length > 0");
    choose(&mut page, "quick.txt");
    page.wait_for("the other is there", &editor("the quick one"));
    release_responses(&mut page);
    // Switches there and back once more: a late response would show by now.
    choose(&mut page, "slow.txt");
    page.wait_for("the slow one is there", &editor("the slow one"));
    hold_back_responses(&mut page, "GET", "files/slow.txt");
    page.act("[...document.querySelectorAll('.entry')].find(entry => entry.innerText.trim() === 'slow.txt').click()");
    choose(&mut page, "quick.txt");
    page.wait_for("the other is there again", &editor("the quick one"));
    release_responses(&mut page);
    page.evaluate("document.querySelector('.viewer .cm-content').focus()");
    write(&mut page, ".viewer .cm-content", "more ");
    page.wait_for("it counts as changed", &shows("changed"));
    key(&mut page, "s", "", 2);
    page.wait_for("it was saved", "!document.querySelector('.viewer').innerText.includes('changed')");
    assert_eq!(job.get_file("quick.txt").expect(200).text(), "more the quick one\n");
    assert_eq!(job.get_file("slow.txt").expect(200).text(), "the slow one\n");
    job.touch("go");
    page.assert_no_exceptions();
}

#[test]
fn saving_changes_only_edited_bytes_and_keeps_later_typing() {
    let server = Server::start();
    let files: [(&str, &[u8]); 2] = [("windows.txt", b"one\r\ntwo\r\n"), ("latin.txt", b"caf\xe9\n")];
    let job = with_files(&server, &files, &json!([{"tool": "shell", "command": WAITS}]));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    choose(&mut page, "latin.txt");
    page.wait_for("what is no UTF-8 is not edited", &shows("Too large or not text"));
    choose(&mut page, "windows.txt");
    page.wait_for("the text is there", &editor("two"));
    write(&mut page, ".viewer .cm-content", "zero ");
    page.wait_for("it counts as changed", &shows("changed"));
    hold_back_responses(&mut page, "PUT", "files/windows.txt");
    key(&mut page, "s", "", 2);
    page.wait_for("it is being saved", "globalThis.held.length > 0");
    page.type_text("and a half ");
    page.wait_for("one types on", &editor("zero and a half one"));
    release_responses(&mut page);
    wait_until("what was there at the first is saved", || {
        job.get_file("windows.txt").expect(200).body == b"zero one\r\ntwo\r\n"
    });
    page.wait_for("the rest still counts as changed", &shows("changed"));
    key(&mut page, "s", "", 2);
    page.wait_for("it was saved too", "!document.querySelector('.viewer').innerText.includes('changed')");
    assert_eq!(job.get_file("windows.txt").expect(200).body, b"zero and a half one\r\ntwo\r\n");
    job.touch("go");
    page.assert_no_exceptions();
}

#[test]
fn unknown_original_version_is_shown_as_unknown() {
    let server = Server::start();
    let steps = json!([
        {"tool": "write_file", "path": "made.txt", "content": "new\n"},
        {"tool": "shell", "command": WAITS}
    ]);
    let job = with_files(&server, &[("there.txt", b"old\n")], &steps);
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    choose(&mut page, "made.txt");
    page.wait_for("it is there", &editor("new"));
    hold_back_responses(&mut page, "GET", "start/made.txt");
    press(&mut page, "Changes");
    page.wait_for("while it is asked, that is said", &shows("Loading the original file"));
    assert_eq!(page.evaluate(&shows("did not exist at the start")), json!(false));
    release_responses(&mut page);
    page.wait_for("then the answer", &shows("The file did not exist at the start of the job."));
    choose(&mut page, "there.txt");
    page.wait_for("the other is there", &editor("old"));
    page.evaluate(
        "globalThis.fetch = ((real) => (path, rest) => String(path).includes('/start/') \
         ? Promise.resolve(new Response(JSON.stringify({code: 'forbidden', detail: 'not for you'}), {status: 403})) : real(path, rest))(fetch); 0",
    );
    press(&mut page, "Changes");
    page.wait_for(
        "what was refused is said as it is",
        &shows("The file at the start of the job is not known. not for you"),
    );
    job.touch("go");
    page.assert_no_exceptions();
}

#[test]
fn files_can_be_uploaded_and_downloaded_in_the_pane() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [{"tool": "shell", "command": "until [ -e sent.txt ]; do sleep 0.05; done; until [ -e go ]; do sleep 0.05; done"}]}));
    let here = tempfile::tempdir().unwrap();
    let sent = here.path().join("sent.txt");
    std::fs::write(&sent, "from the browser\n").unwrap();
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    page.wait_for("the job runs", &shows("until [ -e sent.txt ]"));
    page.wait_for("the pane is there", &has(".tree input[type=file]"));
    choose_files(&mut page, ".tree input[type=file]", &[&sent]);
    choose(&mut page, "sent.txt");
    page.wait_for("it is shown", &editor("from the browser"));
    assert_eq!(job.get_file("sent.txt").expect(200).text(), "from the browser\n");
    let chosen = page.evaluate("document.querySelector('.tree input[type=file]').value");
    assert_eq!(chosen, "", "the same file can be chosen again");
    let down = here.path().join("down");
    std::fs::create_dir(&down).unwrap();
    page.ask("Browser.setDownloadBehavior", &json!({"behavior": "allow", "downloadPath": down}));
    page.click(".viewer a[download]");
    assert_eq!(wait_for_download(&down, "sent.txt"), b"from the browser\n");
    job.touch("go");
    page.assert_no_exceptions();
}

#[test]
fn folder_names_like_object_properties_work() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "write_file", "path": "constructor/inside.txt", "content": "in a strange folder\n"},
        {"tool": "shell", "command": WAITS}
    ]}));
    let mut events = job.follow();
    let later =
        events.until("the command", |event| event.is("call_started") && event.call() == "step-2.1").sequence;
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    press(&mut page, "▸ constructor/");
    choose(&mut page, "inside.txt");
    page.wait_for("its file is shown", &editor("in a strange folder"));
    page.assert_no_exceptions();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files?at={later}", job.id));
    press(&mut page, "▸ constructor/");
    choose(&mut page, "inside.txt");
    page.wait_for(
        "its file is replayed",
        "document.querySelector('.viewer pre')?.innerText.includes('in a strange folder')",
    );
    page.assert_no_exceptions();
    job.touch("go");
}

#[test]
fn removing_a_folder_keeps_the_rest_of_the_tree() {
    let server = Server::start();
    let clean = format!("{WAITS}; rm \"$(printf '\\377')\" \"$(printf '\\376')\"");
    let job = server.schedule(&json!({"steps": [
        {"tool": "shell", "command": "mkdir -p passing; echo x > passing/in.txt; echo y > stays.txt; printf x > \"$(printf '\\377')\"; printf y > \"$(printf '\\376')\""},
        {"tool": "shell", "command": "until [ -e on ]; do sleep 0.05; done; rm -r passing"},
        {"tool": "shell", "command": clean}
    ]}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    press(&mut page, "▸ passing/");
    let listed = |name: &str| {
        format!(
            "[...document.querySelectorAll('.entry')].some(entry => entry.innerText.includes({}))",
            json!(name)
        )
    };
    page.wait_for("what is in it is listed", &listed("in.txt"));
    page.wait_for(
        "two names that no letters can tell are both listed",
        "[...document.querySelectorAll('.entry')].filter(entry => entry.innerText.includes('\u{fffd}')).length === 2",
    );
    job.touch("on");
    page.wait_for("the folder goes", &format!("!({}) && !({})", listed("passing"), listed("in.txt")));
    page.wait_for("the rest is there", &listed("stays.txt"));
    job.touch("go");
    page.wait_for("to the end", &shows("Complete"));
    page.assert_no_exceptions();
}
