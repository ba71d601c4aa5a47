//! Detects what the image of a sandbox provides. Tools that need something else are not offered, and the agent reads
//! about the rest before its first turn.
//!
//! Each sandbox is probed when its agent starts, together with setup that has to run there anyway. The result is not
//! cached: the image may have been rebuilt since, and one job must not affect another through its sandbox.

use std::collections::BTreeSet;
use std::time::Duration;

use agent::{Capability, ExecStart, ProcessRequest};
use protocol::CallKey;

use super::super::{Driver, DriverExit};
use super::host::AgentHost;

const TIMEOUT: Duration = Duration::from_secs(30);
/// How often to probe a sandbox whose answer is incomplete.
const MAX_TRIES: usize = 2;

/// Creates the link to the agent's memory folder, and prints one word for each thing that exists.
const SCRIPT: &str = r#"
mkdir -p /workspace/.caisson && ln -sfn /workspace/.caisson /agent/context
for program in python3 curl rg Xvnc icewm chromium; do command -v $program >/dev/null && echo $program; done
for kernels in /usr/share/jupyter /usr/local/share/jupyter /opt/*/share/jupyter; do
  for kernel in deno tslab; do [ -d $kernels/kernels/$kernel ] && echo typescript; done
  [ -d $kernels/kernels/python3 ] && echo python-kernel
done
"#;
/// The last line of a complete answer.
const END: &str = "looked-at-everything";

/// What a probe of a sandbox has found.
pub(super) struct Probe {
    pub(super) abilities: BTreeSet<Capability>,
    /// What the sandbox printed.
    pub(super) report: String,
}

impl Driver {
    /// Probes the image of the job, with a further script that prints lines of the form `name=value`.
    pub(super) async fn probe(&self, further: &str) -> Result<Probe, DriverExit> {
        let host = AgentHost::new(self, &[]).await?;
        let mut report = String::new();
        for _ in 0..MAX_TRIES {
            // A new id each time, so that the guest cannot answer with the output of an earlier probe.
            let call = format!("probe-{}", uuid::Uuid::now_v7().simple());
            let order = ProcessRequest {
                call: call.clone(),
                key: CallKey::new(call, 1),
                start: Some(ExecStart {
                    timeout: Some(TIMEOUT),
                    ..ExecStart::shell(format!("({SCRIPT}\n{further}\necho {END}) 2>/dev/null"))
                }),
                from_chunk: 0,
                wait: TIMEOUT,
            };
            report = host.run_unlogged(order).await?;
            if is_whole(&report) {
                break;
            }
        }
        if !is_whole(&report) {
            tracing::warn!(job = %self.recorder.job(), "the sandbox did not say all that it has: fewer tools are offered");
        }
        Ok(Probe { abilities: abilities_of(&report), report })
    }
}

fn is_whole(report: &str) -> bool {
    report.lines().next_back() == Some(END)
}

/// Maps the words that the script printed to abilities.
fn abilities_of(report: &str) -> BTreeSet<Capability> {
    let words: BTreeSet<&str> = report.lines().map(str::trim).collect();
    let has = |needed: &[&str]| needed.iter().all(|word| words.contains(word));
    [
        (Capability::Python, has(&["python3"])),
        (Capability::PythonKernel, has(&["python-kernel"])),
        (Capability::Curl, has(&["curl"])),
        (Capability::Ripgrep, has(&["rg"])),
        (Capability::TypeScript, has(&["typescript"])),
        (Capability::Desktop, has(&["Xvnc", "icewm"])),
        (Capability::Browser, has(&["Xvnc", "icewm", "chromium"])),
    ]
    .into_iter()
    .filter_map(|(ability, is_there)| is_there.then_some(ability))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_probe_output_is_not_complete() {
        assert!(is_whole("python3\nlooked-at-everything\n"));
        assert!(!is_whole("python3\n") && !is_whole(""));
    }

    #[test]
    fn a_browser_needs_a_desktop_to_be_seen_on() {
        assert_eq!(abilities_of("python3\nchromium\n"), BTreeSet::from([Capability::Python]));
        let all = abilities_of("Xvnc\nicewm\nchromium");
        assert_eq!(all, BTreeSet::from([Capability::Desktop, Capability::Browser]));
    }
}
