//! The default image in the shared engine of the tests, exported and imported as the manual says.

use std::fs::File;
use std::process::{Command, Stdio};

use e2e::{Engine, binary, default_images};
use rustix::fs::{FlockOperation, flock};

const NAME: &str = "caisson/whole";

/// Imports the image unless an earlier test on the same engine has done so, and returns its name. The engine keeps
/// the image until it stops, because importing two gigabytes takes a minute.
pub(crate) fn import(engine: &Engine) -> &'static str {
    let lock = File::create(format!("{}.whole-image", engine.socket())).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    if engine.ask("GET", &format!("/images/{NAME}/json")).is_some() {
        return NAME;
    }
    let mut exporting = Command::new(binary())
        .args(["image", "export", "default", "--tar", "-"])
        .env("CAISSON_IMAGES", default_images())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let archive = exporting.stdout.take().unwrap();
    let host = format!("unix://{}", engine.socket());
    let mut importing = Command::new("docker");
    importing.args(["--host", &host, "import", "-", NAME]).stdin(archive);
    let imported = importing.output().expect("docker, of the package docker-cli");
    assert!(exporting.wait().unwrap().success());
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    NAME
}
