//! Reads the `AGENTS.md` files of the workspace once, before the first turn.

use agent::{AgentEvent, Host, Notice, NoticeCode, Stopped};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use job::{Event, EventBody, SKIPPED_FOLDERS};
use protocol::{FileKind, FileOperation, FileReply};

use super::super::DriverExit;
use super::host::AgentHost;
use super::stop_of;

const NAME: &str = "AGENTS.md";
/// How many folders deep to search.
const DEPTH: u32 = 4;
const MAX_ENTRIES: u32 = 5000;
/// Bytes read per file, and number of files.
const MAX_BYTES: u64 = 16 * 1024;
const MAX_FILES: usize = 8;

impl AgentHost<'_> {
    /// Passes the workspace's instructions to the agent, unless that was done before.
    pub(super) async fn read_instructions(&self, log: &[Event]) -> Result<(), DriverExit> {
        let is_done = log.iter().any(|event| match &event.body {
            EventBody::TurnStarted(_) => true,
            EventBody::AgentNotified(notice) => notice.code == NoticeCode::Instructions,
            _ => false,
        });
        if is_done {
            return Ok(());
        }
        self.find_instructions().await.map_err(stop_of)
    }

    async fn find_instructions(&self) -> Result<(), Stopped> {
        let list = FileOperation::List {
            path: String::new(),
            depth: DEPTH,
            limit: MAX_ENTRIES,
            skip: SKIPPED_FOLDERS.map(str::to_owned).to_vec(),
        };
        let Ok(FileReply::Entries { entries, truncated }) = self.file(None, list).await? else {
            return Ok(());
        };
        let mut files: Vec<&str> = entries
            .iter()
            .filter(|entry| entry.stat.kind == FileKind::File)
            .map(|entry| entry.path.as_str())
            .filter(|path| path.rsplit('/').next() == Some(NAME))
            .collect();
        // The file at the top applies to everything, but a truncated list may not contain it.
        if truncated && !files.contains(&NAME) {
            files.insert(0, NAME);
        }
        let mut text = String::new();
        for path in files.iter().take(MAX_FILES) {
            let read = FileOperation::Read { path: (*path).to_owned(), offset: 0, limit_bytes: MAX_BYTES };
            if let Ok(FileReply::Content { content, base64, size }) = self.file(None, read).await? {
                text += &section(path, &content, base64, size);
            }
        }
        if text.is_empty() {
            return Ok(());
        }
        if let Some(others) = files.get(MAX_FILES..).filter(|others| !others.is_empty()) {
            text += &format!("\n\n[Not shown: {}]", others.join(", "));
        }
        if truncated {
            text += &format!(
                "\n\n[The workspace has many files: there may be further {NAME} files in its folders]"
            );
        }
        let text = format!("[From the workspace] Follow these instructions of the project.{text}");
        self.record(vec![AgentEvent::Notified(Notice { code: NoticeCode::Instructions, text })]).await
    }
}

/// The text of one file and the folder it applies to, with a remark if the file is longer than what is shown.
fn section(path: &str, content: &str, is_base64: bool, size: u64) -> String {
    // A text that was cut within a character arrives as base64.
    let decoded = is_base64.then(|| STANDARD.decode(content).unwrap_or_default());
    let content = match &decoded {
        Some(bytes) => String::from_utf8_lossy(bytes),
        None => content.into(),
    };
    let folder = path.strip_suffix(NAME).unwrap_or_default();
    let place = if folder.is_empty() { "everything".to_owned() } else { format!("{folder}...") };
    let mut text = format!(
        "\n\n{path} (for {place}):\n{}",
        content.trim().trim_end_matches(char::REPLACEMENT_CHARACTER)
    );
    if size > MAX_BYTES {
        text += &format!("\n[These are the first {MAX_BYTES} of {size} bytes; `read_file` shows the rest]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_instruction_files_are_marked() {
        let whole = section("AGENTS.md", "be kind\n", false, 8);
        assert_eq!(whole, "\n\nAGENTS.md (for everything):\nbe kind");
        let cut = section("web/AGENTS.md", &STANDARD.encode(b"na\xc3"), true, 20_000);
        assert!(
            cut.starts_with("\n\nweb/AGENTS.md (for web/...):\nna\n[These are the first 16384 of 20000"),
            "{cut}"
        );
    }
}
