//! Share links are recorded: they can be listed, and a revoked link stops working at once.

use e2e::{Options, Socket};
use reqwest::Method;
use serde_json::{Value, json};

use crate::keyed_server::{Keyed, start, stderr, stdout};
use crate::streams::{follow, until_closed, until_end};

/// Creates a share link; returns its id and its token.
fn share(keyed: &Keyed, key: &str, job: &str, body: &Value) -> (String, String) {
    let made = keyed.post(key, &format!("/v1/jobs/{job}/shares"), body).expect(201).json();
    let link = made["url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    (made["id"].as_str().unwrap().to_owned(), link)
}

fn listed(keyed: &Keyed, key: &str, job: &str) -> Vec<Value> {
    let answer = keyed.get(key, &format!("/v1/jobs/{job}/shares")).expect(200).json();
    answer["shares"].as_array().unwrap().clone()
}

#[test]
fn revoked_share_link_ends_at_once_with_its_open_streams() {
    let keyed = start(Options::default());
    let ada = keyed.key("ada", "submitter", &json!({}));
    let stranger = keyed.key("eve", "submitter", &json!({}));
    let job = keyed.schedule(&ada, "sleep 3600");
    keyed.wait_for(&job, "running");
    let (terminal, link) = share(&keyed, &ada, &job, &json!({"view": "terminal", "rights": "use"}));
    let (events, events_link) = share(&keyed, &keyed.admin, &job, &json!({"view": "events", "for_s": 60}));
    let (kept, kept_link) = share(&keyed, &ada, &job, &json!({"view": "files"}));

    let mut told: Vec<Value> = listed(&keyed, &ada, &job);
    for share in &mut told {
        assert!(share["created_at"].as_str() < share["expires_at"].as_str(), "{share}");
        assert!(share["made_by"]["key"].is_string(), "{share}");
        *share = json!([share["id"], share["view"], share["rights"], share["made_by"]["name"]]);
    }
    for expected in [
        json!([terminal, "terminal", "use", "ada"]),
        json!([events, "events", "watch", "root"]),
        json!([kept, "files", "watch", "ada"]),
    ] {
        assert!(told.len() == 3 && told.contains(&expected), "{expected} is not in {told:?}");
    }

    let path = format!("/v1/jobs/{job}/terminal?share={link}");
    let mut socket = Socket::open(&keyed.server, &path);
    socket.send_bytes(b"echo one-$((1+1))\n");
    socket.until_terminal_shows("one-2");
    let events_path = format!("/v1/jobs/{job}/events?share={events_link}");
    let stream = follow(keyed.server.request(Method::GET, &events_path));

    let address = |share: &str| format!("/v1/jobs/{job}/shares/{share}");
    keyed.delete(&stranger, &address(&terminal)).expect_problem(404, "job_not_found");
    keyed.delete(&ada, &address("0f")).expect_problem(404, "share_not_found");
    let other = keyed.schedule(&ada, "true");
    let elsewhere = format!("/v1/jobs/{other}/shares/{terminal}");
    keyed.delete(&ada, &elsewhere).expect_problem(404, "share_not_found");

    keyed.delete(&ada, &address(&terminal)).expect(204);
    until_closed(socket);
    let refused = Socket::try_open(&keyed.server, &path, &[]).err().map(|(status, _)| status);
    assert_eq!(refused, Some(401));
    // The owner of the job may revoke links that others have created.
    keyed.delete(&ada, &address(&events)).expect(204);
    assert!(!until_end(stream).contains("event: end"), "the job goes on");
    keyed.delete(&ada, &address(&events)).expect_problem(404, "share_not_found");
    assert_eq!(listed(&keyed, &ada, &job).len(), 1);

    keyed.server.kill9();
    keyed.server.restart();
    keyed.server.get(&format!("/share/{link}")).expect_problem(410, "share_over");
    keyed.server.get(&format!("/v1/jobs/{job}/files?share={kept_link}")).expect(200);
    assert_eq!(listed(&keyed, &ada, &job)[0]["id"], json!(kept));
    keyed.delete(&keyed.admin, "/v1/keys/ada").expect(204);
    assert_eq!(
        listed(&keyed, &keyed.admin, &job),
        Vec::<Value>::new(),
        "a link ends with the key of who made it"
    );
    keyed.post(&keyed.admin, &format!("/v1/jobs/{job}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&job, "cancelled");
}

#[test]
fn cli_lists_and_revokes_share_links() {
    let keyed = start(Options::default());
    let job = keyed.schedule(&keyed.admin, "true");
    keyed.wait_for(&job, "complete");
    let caisson = |words: &[&str]| keyed.caisson(Some(&keyed.admin), words);
    let links = ["files", "output"].map(|view| stdout(&caisson(&["share", &job, view])).trim().to_owned());
    let listed = stdout(&caisson(&["shares", "list", &job]));
    for text in ["VIEW", "files", "output", "watch", "root"] {
        assert!(listed.contains(text), "{listed}");
    }
    let revoked = caisson(&["shares", "revoke", &job, &links[0]]);
    assert!(revoked.status.success() && stdout(&revoked).contains("is revoked"), "{}", stderr(&revoked));
    let left = caisson(&["shares", "list", &job, "--json"]);
    let left: Value = serde_json::from_str(&stdout(&left)).unwrap();
    assert_eq!(left["shares"].as_array().unwrap().len(), 1);
    let id = left["shares"][0]["id"].as_str().unwrap();
    assert!(caisson(&["shares", "revoke", &job, &id[..8]]).status.success());
    let none = caisson(&["shares", "revoke", &job, &id[..8]]);
    assert!(!none.status.success() && stderr(&none).contains("no valid link"), "{}", stderr(&none));
    assert_eq!(stdout(&caisson(&["shares", "list", &job])), "no links\n");
}
