//! Common clients in a sandbox: package managers by the preset `packages`, and git over HTTP from a server of the
//! test. The same checks run on every backend.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::event::Event;
use crate::external_server::ExternalServer;
use crate::server::Server;

/// Runs apt as an ordinary user, with its own state and cache folders.
const APT: &str = "mkdir -p /tmp/apt/state/lists/partial /tmp/apt/cache/archives/partial && touch /tmp/apt/state/status && \
    apt='apt-get -o Dir::State=/tmp/apt/state -o Dir::Cache=/tmp/apt/cache -o Debug::NoLocking=true' && \
    $apt update && $apt download hello && ls hello_*.deb";
const PIP: &str = "python3 -m pip install --no-cache-dir --target lib six && \
    PYTHONPATH=lib python3 -c 'import six; print(six.__version__)'";
const NPM: &str = "npm install --no-audit --no-fund is-number && \
    node -e 'console.log(require(\"is-number\")(42))'";
/// In a fresh home folder.
const YARN_AND_PNPM: &str = "mkdir y p && echo '{\"name\": \"x\", \"version\": \"1.0.0\"}' | tee y/package.json > p/package.json && \
    (cd y && npx --yes yarn@1 add is-number && test -d node_modules/is-number) && \
    (cd p && npx --yes pnpm@9 add is-number && test -d node_modules/is-number)";
/// `cargo vendor` fetches without needing a compiler.
const CARGO: &str = "chmod +x cargo && mkdir -p c/src && touch c/src/lib.rs && cd c && \
    printf '[package]\\nname = \"c\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n[dependencies]\\nitoa = \"1\"\\n' > Cargo.toml && \
    ../cargo vendor && test -f vendor/itoa/Cargo.toml";

/// Runs all clients in one job and checks that each reached its registry through the proxy.
#[track_caller]
pub fn check_clients(server: &Server) {
    let cargo = std::env::var_os("CARGO").expect("cargo says where it is when it runs tests");
    let folder = tempfile::tempdir().expect("a folder");
    let git = ExternalServer::files(git_files(folder.path()));
    let place = format!("localhost:{}", git.port);
    let clone = format!("no_proxy= NO_PROXY= git clone http://{place}/project.git && cat project/hello.txt");
    let step = |command: &str| json!({"tool": "shell", "command": command, "timeout_s": 280});
    let socks = format!(
        "curl -sS -m 60 --noproxy '' --socks5-hostname 127.0.0.1:3128 http://{place}/project.git/HEAD"
    );
    let steps = [APT, PIP, NPM, YARN_AND_PNPM, CARGO, &clone, &socks].map(step);
    let job = server.schedule(&json!({
        "start": false, "egress": {"allow": ["packages", {"host": place, "without_tls": true}]},
        "limits": {"wall_clock_s": 1200},
        "steps": steps,
    }));
    job.put_file("cargo", std::fs::read(cargo).expect("reading cargo"));
    job.post("start", &json!({})).expect(202);
    let mut events = job.follow();
    events.until_end();
    let (status, summary) = (job.status(), events.summary());
    let said: Vec<String> = (1..=7).map(|step| events.output(&format!("step-{step}.1"), "")).collect();
    assert_eq!(status["status"], "complete", "{status}\n{}\n{summary}", said.join("\n---\n"));
    let report = job.get("network").expect(200).json();
    for registry in ["debian", "pypi", "npmjs", "crates"] {
        let reached = |event: &Event| {
            let host = event.data()["host"].as_str().unwrap_or_default();
            event.is("egress") && event.data()["event"] == "opened" && host.contains(registry)
        };
        assert!(events.count(reached) > 0, "{registry}: {report}");
    }
    assert_eq!(report["totals"]["refused"], 0, "{report}");
    assert!(said[5].contains("from the outside"), "{}", said[5]);
    assert!(said[6].contains("refs/heads/main"), "over SOCKS5: {}", said[6]);
    // Downloads over plain HTTP have a digest.
    let downloads = report["downloads"].as_array().cloned().unwrap_or_default();
    let package =
        downloads.iter().find(|download| download["url"].as_str().is_some_and(|url| url.contains("/hello_")));
    assert!(package.is_some_and(|package| package["sha256"].is_string()), "{downloads:?}");
}

/// Creates the bare repository `project.git` with a file `hello.txt`, ready to be served as static files. Returns
/// the folder to serve.
#[must_use]
pub fn git_files(folder: &Path) -> std::path::PathBuf {
    let run = |words: &[&str], place: &Path| {
        let mut git = Command::new("git");
        git.args([
            "-c",
            "user.name=Test",
            "-c",
            "user.email=test@example.org",
            "-c",
            "init.defaultBranch=main",
        ]);
        let output =
            git.args(words).current_dir(place).output().expect("git is missing: apt-get install git");
        assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let work = folder.join("work");
    std::fs::create_dir(&work).expect("a folder");
    std::fs::write(work.join("hello.txt"), "from the outside\n").expect("a file");
    run(&["init"], &work);
    run(&["add", "."], &work);
    run(&["commit", "-m", "First"], &work);
    let served = folder.join("served");
    std::fs::create_dir(&served).expect("a folder");
    run(&["clone", "--bare", &work.to_string_lossy(), "project.git"], &served);
    run(&["update-server-info"], &served.join("project.git"));
    served
}
