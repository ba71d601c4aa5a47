//! Detects what the image of a sandbox provides. Tools that need something else are not offered.
//!
//! Each sandbox is probed when its agent starts, together with setup that has to run there anyway. The result is not
//! cached: the image may have been rebuilt since, and one job must not affect another through its sandbox.

use std::collections::BTreeSet;
use std::time::Duration;

use agent::{Ability, ExecOrder, ExecStart};
use protocol::CallKey;

use super::super::{Driver, Stop};
use super::host::AgentHost;

const PATIENCE: Duration = Duration::from_secs(30);
/// How often to probe a sandbox whose answer is incomplete.
const MOST_TRIES: usize = 2;

/// Creates the link to the agent's memory folder, and prints one word for each thing that exists. The last word marks
/// a complete answer.
const SCRIPT: &str = r#"
mkdir -p /workspace/.caisson && ln -sfn /workspace/.caisson /agent/context
for program in python3 curl rg Xvnc icewm chromium; do command -v $program >/dev/null && echo $program; done
for kernels in /usr/share/jupyter /usr/local/share/jupyter /opt/*/share/jupyter; do
  for kernel in deno tslab; do [ -d $kernels/kernels/$kernel ] && echo typescript; done
done
echo looked-at-everything
"#;
const END: &str = "looked-at-everything";

impl Driver {
    /// Probes the image of the job.
    pub(super) async fn abilities(&self) -> Result<BTreeSet<Ability>, Stop> {
        let host = AgentHost::new(self, &[]).await?;
        let mut report = String::new();
        for _ in 0..MOST_TRIES {
            // A new id each time, so that the guest cannot answer with the output of an earlier probe.
            let call = format!("probe-{}", uuid::Uuid::now_v7().simple());
            let order = ExecOrder {
                call: call.clone(),
                key: CallKey::new(call, 1),
                start: Some(ExecStart {
                    timeout: Some(PATIENCE),
                    ..ExecStart::shell(format!("({SCRIPT}) 2>/dev/null"))
                }),
                from_chunk: 0,
                wait: PATIENCE,
            };
            report = host.run_unlogged(order).await?;
            if is_whole(&report) {
                return Ok(abilities_of(&report));
            }
        }
        tracing::warn!(job = %self.recorder.job(), "the sandbox did not say all that it has: fewer tools are offered");
        Ok(abilities_of(&report))
    }
}

fn is_whole(report: &str) -> bool {
    report.lines().next_back() == Some(END)
}

/// Maps the words that the script printed to abilities.
fn abilities_of(report: &str) -> BTreeSet<Ability> {
    let words: BTreeSet<&str> = report.lines().map(str::trim).collect();
    let has = |needed: &[&str]| needed.iter().all(|word| words.contains(word));
    [
        (Ability::Python, has(&["python3"])),
        (Ability::Curl, has(&["curl"])),
        (Ability::Ripgrep, has(&["rg"])),
        (Ability::TypeScript, has(&["typescript"])),
        (Ability::Desktop, has(&["Xvnc", "icewm"])),
        (Ability::Browser, has(&["Xvnc", "icewm", "chromium"])),
    ]
    .into_iter()
    .filter_map(|(ability, is_there)| is_there.then_some(ability))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_off_is_not_the_whole_answer() {
        assert!(is_whole("python3\nlooked-at-everything\n"));
        assert!(!is_whole("python3\n") && !is_whole(""));
    }

    #[test]
    fn a_browser_needs_a_desktop_to_be_seen_on() {
        assert_eq!(abilities_of("python3\nchromium\n"), BTreeSet::from([Ability::Python]));
        let all = abilities_of("Xvnc\nicewm\nchromium");
        assert_eq!(all, BTreeSet::from([Ability::Desktop, Ability::Browser]));
    }
}
