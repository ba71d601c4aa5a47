//! Egress of containers: the same clients, input requests and secrets as with namespaces.

use e2e::{Engine, ExternalServer, SecretHost, check_clients, shell};
use serde_json::json;

use crate::default_image_import;

const CANARY: &str = "canary-in-a-container-5521";

#[test]
fn package_managers_and_clients_with_own_ca_stores_work() {
    let engine = Engine::get();
    let image = default_image_import::import(&engine);
    let server = engine.serve(&format!("image = {image:?}\n[egress]\nallow_ranges = [\"127.0.0.0/8\"]"));
    check_clients(&server);
    engine.assert_nothing_left(&server);
    drop(server);
    let host = SecretHost::start();
    let server = engine.serve(&format!("image = {image:?}\n{}", host.config()));
    host.check(&server);
    engine.assert_nothing_left(&server);
}

#[test]
fn secret_reaches_its_host_but_never_the_container() {
    let engine = Engine::get();
    let outside = ExternalServer::echo("localhost");
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, CANARY).unwrap();
    let certificate = outside.certificate(folder.path());
    let server = engine.serve(&format!(
        "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\nextra_ca = [\"{}\"]\n[secrets.API_TOKEN]\nfile = \"{}\"",
        certificate.display(),
        token.display()
    ));
    let place = format!("localhost:{}", outside.port);
    let ask = format!(
        "echo \"$API_TOKEN\"; curl -sS -m 60 --noproxy '' -H \"Authorization: Bearer $API_TOKEN\" https://{place}/"
    );
    let job = server.schedule(&json!({
        "steps": [shell(&ask)], "egress": {"allow": [place]}, "secrets": {"API_TOKEN": {"hosts": [place]}},
    }));
    let mut events = job.follow();
    events.until_end();
    let output = events.output("step-1.1", "");
    assert_eq!(job.status()["status"], "complete", "{output}\n{}", events.summary());
    assert!(output.starts_with("caisson-placeholder-") && output.contains("echo: Bearer ****"), "{output}");
    assert!(!output.contains(CANARY));
    assert!(outside.heads()[0].contains(CANARY), "{:?}", outside.heads());
    // Another container does not trust the job's CA.
    let job = server.schedule(&json!({"steps": [shell("grep -c BEGIN /etc/ssl/certs/ca-certificates.crt")]}));
    let mut others = job.follow();
    others.until_end();
    let count = |text: String| text.trim().parse::<u32>().unwrap_or_default();
    let plain = count(others.output("step-1.1", "stdout"));
    let job = server.schedule(&json!({
        "steps": [shell("grep -c BEGIN /etc/ssl/certs/ca-certificates.crt")],
        "secrets": {"API_TOKEN": {"hosts": [place]}},
    }));
    let mut own = job.follow();
    own.until_end();
    assert_eq!(count(own.output("step-1.1", "stdout")), plain + 1, "{}", own.summary());
    engine.assert_nothing_left(&server);
}
