//! Concurrent requests: twenty at once get no more than one alone would.

use std::sync::Barrier;

use e2e::Options;
use serde_json::{Value, json};

use crate::keyed_server::start;

const MANY: usize = 20;

/// Calls `ask` in twenty threads at the same moment and returns the status codes.
fn at_once(ask: impl Fn(usize) -> u16 + Sync) -> Vec<u16> {
    let begin = Barrier::new(MANY);
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..MANY)
            .map(|number| {
                let (begin, ask) = (&begin, &ask);
                scope.spawn(move || {
                    begin.wait();
                    ask(number)
                })
            })
            .collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|one| **one == status).count()
}

#[test]
fn concurrent_requests_cannot_duplicate_key_names_or_revoke_the_last_admin() {
    let keyed = start(Options::default());
    let body = json!({"name": "ada", "role": "viewer"});
    let made = at_once(|_| keyed.post(&keyed.admin, "/v1/keys", &body).status);
    assert_eq!((count(&made, 201), count(&made, 422)), (1, MANY - 1), "{made:?}");
    let keys = keyed.get(&keyed.admin, "/v1/keys").expect(200).json()["keys"].clone();
    assert_eq!(keys.as_array().unwrap().iter().filter(|key| key["name"] == "ada").count(), 1);

    // Twenty admins revoke each other; one must remain, and the server must still require keys.
    let admins: Vec<String> =
        (0..MANY).map(|number| keyed.key(&format!("admin-{number}"), "admin", &json!({}))).collect();
    keyed.delete(&admins[0], "/v1/keys/root").expect(204);
    let ended = at_once(|number| {
        keyed.delete(&admins[number], &format!("/v1/keys/admin-{}", (number + 1) % MANY)).status
    });
    assert!(count(&ended, 204) < MANY, "{ended:?}");
    keyed.server.get("/v1/jobs").expect_problem(401, "key_missing");
    let left = admins.iter().filter(|key| keyed.get(key, "/v1/keys").status == 200).count();
    assert_eq!(left, MANY - count(&ended, 204), "{ended:?}");
}

#[test]
fn concurrent_requests_cannot_share_the_last_slot() {
    let keyed = start(Options { config: "[jobs]\nmax_running = 4\n".into(), ..Options::default() });
    let ada = keyed.key("ada", "submitter", &json!({"max_running": 1, "max_queued": 3}));
    let first = keyed.schedule(&ada, "sleep 3600");
    keyed.wait_for(&first, "running");
    let body = json!({"steps": [{"tool": "shell", "command": "true"}]});
    let taken = at_once(|_| keyed.post(&ada, "/schedule", &body).status);
    assert_eq!((count(&taken, 202), count(&taken, 429)), (3, MANY - 3), "{taken:?}");

    let bob = keyed.key("bob", "submitter", &json!({"max_running": 2}));
    let made = at_once(|_| keyed.post(&bob, "/v1/sandboxes", &json!({})).status);
    assert_eq!((count(&made, 201), count(&made, 429)), (2, MANY - 2), "{made:?}");
    keyed.post(&ada, &format!("/v1/jobs/{first}/cancel"), &Value::Null).expect(202);
}
