//! What the image of a sandbox has: tools that need something else are not offered.
//!
//! Each sandbox is asked when its agent begins, beside something that must be done there anyway: an image may have been
//! built anew since, and what a job does to its own sandbox is no other job's business.

use std::collections::BTreeSet;
use std::time::Duration;

use agent::{Ability, ExecOrder, ExecStart};
use protocol::CallKey;

use super::super::{Driver, Stop};
use super::host::AgentHost;

const PATIENCE: Duration = Duration::from_secs(30);
/// How often a sandbox is asked that does not answer to the end.
const MOST_TRIES: usize = 2;

/// Makes the other name of the folder for the agent's memory, and names what is there, a word each. The last word says that
/// everything was looked at.
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
    /// What the image of the job has.
    pub(super) async fn abilities(&self) -> Result<BTreeSet<Ability>, Stop> {
        let host = AgentHost::new(self, &[]).await?;
        let mut report = String::new();
        for _ in 0..MOST_TRIES {
            // The name is new each time: what it says may not be kept from an earlier sandbox.
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

/// Whether a sandbox has said everything.
fn is_whole(report: &str) -> bool {
    report.lines().next_back() == Some(END)
}

/// What the words of the script mean together.
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
