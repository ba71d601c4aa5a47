//! The files that a finished job leaves in its folder beside `output.zip`.

use std::fs;
use std::path::Path;

use super::{AGENT_LOG, FILE_LIST, NETWORK_LIST};

/// What `output.zip` contains, with digests, and what it leaves out.
pub(crate) const MANIFEST: &str = "manifest.json";
/// The narrowest egress policy that would have sufficed.
pub(crate) const LEARNED_POLICY: &str = "learned-egress.json";
/// What the model last saw; for a step job, the calls with their output.
pub(crate) const CONTEXT: &str = "context.txt";
/// The history of the job.
pub(crate) const MEMORY: &str = "memory.json";

/// The files with fixed names, in the order of the list.
const NAMED: [&str; 7] = [MANIFEST, AGENT_LOG, NETWORK_LIST, FILE_LIST, LEARNED_POLICY, CONTEXT, MEMORY];

/// A file that a finished job has left beside `output.zip`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultFile {
    /// Path in the job's folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// The result files in a job's folder.
pub(crate) fn list(folder: &Path) -> Vec<ResultFile> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut recorded: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_recorded_in_workspace(name))
        .collect();
    recorded.sort();
    NAMED
        .iter()
        .map(|name| (*name).to_owned())
        .chain(recorded)
        .filter_map(|name| find(folder, &name))
        .collect()
}

/// Looks up one result file; `None` if there is no such file or the name is not that of a result file.
pub(crate) fn find(folder: &Path, name: &str) -> Option<ResultFile> {
    if !NAMED.contains(&name) && !is_recorded_in_workspace(name) {
        return None;
    }
    let facts = fs::symlink_metadata(folder.join(name)).ok()?;
    facts.is_file().then(|| ResultFile { name: name.to_owned(), bytes: facts.len() })
}

/// Whether the log has the digest of a result file once the job has ended. The human-readable log still grows, and
/// the list of connections is compared with the log line by line.
pub(crate) fn is_pinned(name: &str) -> bool {
    name != AGENT_LOG && name != NETWORK_LIST
}

/// Whether the guest writes a file of this name below `.caisson/` of the workspace, for people to keep: notebooks of
/// what ran (`agent.ipynb`, `agent-KERNEL.ipynb`) and recordings of the desktop (`desktop.apng`, `desktop-N.apng`).
pub(crate) fn is_recorded_in_workspace(name: &str) -> bool {
    let is_numbered = |stem: &str, of: &str| {
        stem.strip_prefix(of).is_some_and(|rest| {
            rest.is_empty()
                || rest.strip_prefix('-').is_some_and(|label| is_plain(label) && label.len() <= 64)
        })
    };
    match name.rsplit_once('.') {
        Some((stem, "ipynb")) => is_numbered(stem, "agent"),
        Some((stem, "apng")) => is_numbered(stem, "desktop"),
        _ => false,
    }
}

fn is_plain(label: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !label.is_empty() && label.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_notebooks_and_recordings_are_taken_from_the_workspace() {
        for name in
            ["agent.ipynb", "agent-deno.ipynb", "agent-python3.12.ipynb", "desktop.apng", "desktop-2.apng"]
        {
            assert!(is_recorded_in_workspace(name), "{name}");
        }
        let long = format!("agent-{}.ipynb", "x".repeat(65));
        for name in [
            "",
            "agent",
            "agents.ipynb",
            "agent-.ipynb",
            "agent-a/b.ipynb",
            "agent-ä.ipynb",
            "manifest.json",
            "desktop.apng.partial",
            "output.zip",
            "agent.apng",
            long.as_str(),
        ] {
            assert!(!is_recorded_in_workspace(name), "{name}");
        }
    }

    #[test]
    fn only_result_files_of_the_folder_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        fs::create_dir(place.join("audit")).unwrap();
        for name in
            [MEMORY, MANIFEST, FILE_LIST, "usage.jsonl", "output.zip", "agent.ipynb", "agent.ipynb.partial"]
        {
            fs::write(place.join(name), "12345").unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", place.join(CONTEXT)).unwrap();
        let names: Vec<String> = list(place).into_iter().map(|file| file.name).collect();
        assert_eq!(names, [MANIFEST, FILE_LIST, MEMORY, "agent.ipynb"]);
        assert_eq!(find(place, FILE_LIST), Some(ResultFile { name: FILE_LIST.into(), bytes: 5 }));
        for name in ["usage.jsonl", "output.zip", "../caisson.db", "audit", CONTEXT, LEARNED_POLICY] {
            assert_eq!(find(place, name), None, "{name}");
        }
    }
}
