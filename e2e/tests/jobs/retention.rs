//! Retention: what is removed, what is kept, and what prevents a removal.

use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{Options, Server, shell, wait_until};

const AT_ONCE: &str = "[retention]\ndays = 0\n";
/// The file that stores the last time of day the server trusted.
const LAST_SEEN_TIME_FILE: &str = "last-look";

/// Restarts the server with this configuration; the start removes old jobs.
fn restart_with(server: &Server, config: &str) {
    server.stop();
    std::fs::write(server.folder().join("caisson.toml"), config).unwrap();
    server.restart();
}

fn is_gone(server: &Server, id: &str) -> bool {
    server.get(&format!("/v1/jobs/{id}")).status == 404 && !server.data().join("jobs").join(id).exists()
}

/// A mount that prevents the removal of a folder.
struct Mounted(PathBuf);

impl Mounted {
    fn on(folder: &Path) -> Self {
        std::fs::create_dir(folder).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(folder).status();
        assert!(mounted.unwrap().success(), "mounting needs root");
        Self(folder.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn failed_removal_of_a_job_does_not_block_others() {
    let server = Server::start();
    let held = server.schedule_steps(&[shell("true")]);
    held.wait_for("complete");
    let other = server.schedule_steps(&[shell("true")]);
    other.wait_for("complete");
    let mount = Mounted::on(&server.data().join("jobs").join(&held.id).join("held"));
    restart_with(&server, AT_ONCE);
    wait_until("the later job is removed", || is_gone(&server, &other.id));
    assert!(server.log().contains("an old job could not be removed"), "{}", server.log());
    assert!(server.data().join("jobs").join(&held.id).exists());
    drop(mount);
    // What is left is a folder that the database does not know.
    server.stop();
    server.restart();
    wait_until("its folder is removed", || is_gone(&server, &held.id));
}

#[test]
fn unknown_job_folders_are_removed_and_other_folders_stay() {
    let server = Server::prepare(Options { config: AT_ONCE.into(), ..Options::default() });
    let jobs = server.data().join("jobs");
    let unknown = jobs.join("01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f");
    let foreign = jobs.join("lost+found");
    for folder in [&unknown, &foreign] {
        std::fs::create_dir_all(folder.join("logs")).unwrap();
    }
    server.restart();
    wait_until("the folder is removed", || !unknown.exists());
    assert!(foreign.exists());
}

#[test]
fn clock_jump_ahead_removes_nothing() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("true")]);
    job.wait_for("complete");
    server.stop();
    // As if the clock had been a month behind when the server last looked.
    let file = server.data().join(LAST_SEEN_TIME_FILE);
    let seen: i64 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    std::fs::write(&file, (seen - 30 * 86_400_000).to_string()).unwrap();
    std::fs::write(server.folder().join("caisson.toml"), AT_ONCE).unwrap();
    server.restart();
    wait_until("it is told", || server.log().contains("nothing is removed for its age"));
    assert!(!is_gone(&server, &job.id));
    server.stop();
    // With the true time restored, the job counts as old.
    std::fs::write(&file, seen.to_string()).unwrap();
    server.restart();
    wait_until("the job is removed", || is_gone(&server, &job.id));
}
