//! Writes all executed cells to a notebook in the workspace: `.caisson/agent.ipynb` for Python,
//! `.caisson/agent-NAME.ipynb` for other kernels.
//!
//! A notebook file is always complete: the guest writes a temporary file and renames it. It copies the part before
//! the new cell inside the kernel, without reading it. It parses the notebook only if another program has changed the
//! file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use protocol::{CallKey, Display, DisplayKind, OutputStream};
use serde_json::{Value, json};

use crate::kernels::spec::KernelSpec;
use crate::resources::Resources;

const FOLDER: &str = ".caisson";
/// The most output of one cell in the notebook. The job's log has more.
const MAX_CELL_BYTES: usize = 8 * 1024 * 1024;
const MAX_STREAM_BYTES: usize = 1024 * 1024;
/// A notebook that others have made larger than this is moved aside.
const MAX_NOTEBOOK_BYTES: u64 = 128 * 1024 * 1024;

/// A cell with its output.
#[derive(Debug, Default)]
pub(crate) struct CellRecord {
    id: String,
    code: String,
    /// The kernel's execution counter for the cell.
    pub(crate) execution_count: Option<u64>,
    outputs: Vec<Output>,
    bytes: usize,
}

/// One output of a cell.
#[derive(Debug)]
struct Output {
    json: Value,
    /// Identifies the output for updates.
    display_id: Option<String>,
    /// Size as JSON. Printed text is counted in `CellRecord::bytes` instead.
    bytes: usize,
}

impl CellRecord {
    /// A cell without outputs.
    pub(crate) fn new(key: &CallKey, code: &str) -> Self {
        let id: String = format!("{}-{}", key.attempt, key.call).chars().take(64).collect();
        Self { id, code: code.to_owned(), ..Self::default() }
    }

    /// Adds printed text. If it is too long, cuts it and appends a note.
    pub(crate) fn print(&mut self, stream: OutputStream, text: &str) {
        let name = if stream == OutputStream::Stderr { "stderr" } else { "stdout" };
        if self.bytes >= MAX_CELL_BYTES {
            return;
        }
        let joins = self.outputs.last().is_some_and(|last| last.json["name"] == name);
        if !joins {
            let json = json!({"output_type": "stream", "name": name, "text": ""});
            self.outputs.push(Output { json, display_id: None, bytes: 0 });
        }
        let Some(Value::String(printed)) = self.outputs.last_mut().and_then(|last| last.json.get_mut("text"))
        else {
            return;
        };
        if printed.len() >= MAX_STREAM_BYTES {
            return;
        }
        let room = text.floor_char_boundary(MAX_STREAM_BYTES - printed.len());
        printed.push_str(text.get(..room).unwrap_or_default());
        self.bytes += room;
        if room < text.len() {
            printed.push_str("\n[more was printed; the log of the job has it]\n");
            self.bytes = self.bytes.max(MAX_STREAM_BYTES);
            // Fill the text up, so that nothing more is appended.
            while printed.len() < MAX_STREAM_BYTES {
                printed.push('\n');
            }
        }
    }

    /// Adds or updates a display.
    pub(crate) fn show(&mut self, display: &Display) {
        let output = match display.kind {
            DisplayKind::Clear => {
                self.outputs.clear();
                self.bytes = 0;
                return;
            }
            DisplayKind::Result => json!({
                "output_type": "execute_result", "data": display.data, "metadata": display.metadata,
                "execution_count": display.execution_count,
            }),
            DisplayKind::Update => return self.update(display),
            DisplayKind::Data => json!({
                "output_type": "display_data", "data": display.data, "metadata": display.metadata,
            }),
            DisplayKind::Error => {
                let Some(error) = &display.error else { return };
                json!({
                    "output_type": "error", "ename": error.name, "evalue": error.message,
                    "traceback": error.traceback,
                })
            }
        };
        let bytes = serde_json::to_vec(&output).map_or(0, |json| json.len());
        if self.bytes + bytes <= MAX_CELL_BYTES {
            self.bytes += bytes;
            self.outputs.push(Output { json: output, display_id: display.display_id.clone(), bytes });
        }
    }

    /// Updates the outputs that have the same ID. Outputs of earlier cells are not updated.
    fn update(&mut self, display: &Display) {
        let Some(id) = &display.display_id else { return };
        for output in self.outputs.iter_mut().filter(|output| output.display_id.as_ref() == Some(id)) {
            let mut json = output.json.clone();
            json["data"] = Value::Object(display.data.clone());
            json["metadata"] = Value::Object(display.metadata.clone());
            let bytes = serde_json::to_vec(&json).map_or(0, |json| json.len());
            let total = self.bytes.saturating_sub(output.bytes) + bytes;
            if total <= MAX_CELL_BYTES {
                self.bytes = total;
                *output = Output { json, display_id: output.display_id.take(), bytes };
            }
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "cell_type": "code",
            "id": self.id,
            "execution_count": self.execution_count,
            "metadata": {},
            "source": self.code,
            "outputs": self.outputs.iter().map(|output| &output.json).collect::<Vec<_>>(),
        })
    }
}

/// The metadata of a notebook file after the guest last wrote it. Detects changes by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Offset of the end of the list of cells.
    cells_end: u64,
}

/// The notebooks of the sandbox.
#[derive(Default)]
pub(crate) struct Notebooks {
    stamps: RefCell<HashMap<String, FileStamp>>,
}

impl Notebooks {
    /// Adds a cell to the notebook of its kernel.
    pub(crate) async fn append(
        &self,
        resources: &Resources,
        spec: &KernelSpec,
        record: CellRecord,
    ) -> Result<(), String> {
        let name =
            if spec.name == "python3" { "agent.ipynb".into() } else { format!("agent-{}.ipynb", spec.name) };
        let stamp = self.stamps.borrow().get(&name).copied();
        let path = Path::new(&resources.spawner.directory).join(FOLDER).join(&name);
        let rest = json!({
            "kernelspec": {"display_name": spec.display_name, "language": spec.language, "name": spec.name},
            "language_info": {"name": spec.language},
        });
        let write = move || write(&path, &record.to_json(), &rest, stamp);
        let written = resources.files.workers.short(write).await.map_err(|error| error.message)?;
        match written {
            Ok(stamp) => {
                self.stamps.borrow_mut().insert(name, stamp);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

fn closing(metadata: &Value) -> String {
    format!("\n],\"metadata\":{metadata},\"nbformat\":4,\"nbformat_minor\":5}}\n")
}

/// Writes the notebook with one more cell. Blocks: call it on a thread with the agent's permissions.
fn write(path: &Path, cell: &Value, metadata: &Value, stamp: Option<FileStamp>) -> io::Result<FileStamp> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let beside = beside(path);
    let _ = std::fs::remove_file(&beside);
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&beside)?;
    let written = fill(&mut new, path, cell, metadata, stamp);
    let finished = written.and_then(|cells_end| {
        std::fs::rename(&beside, path)?;
        let found = new.metadata()?;
        let modified = (found.mtime(), found.mtime_nsec());
        Ok(FileStamp { inode: found.ino(), size: found.size(), modified, cells_end })
    });
    if finished.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    finished
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.new"))
}

/// Writes the whole notebook. Returns the offset of the end of its cells.
fn fill(
    new: &mut File,
    path: &Path,
    cell: &Value,
    metadata: &Value,
    stamp: Option<FileStamp>,
) -> io::Result<u64> {
    let (mut metadata, mut is_first) = (metadata.clone(), true);
    match open(path)? {
        None => new.write_all(b"{\"cells\":[")?,
        Some((mut old, found)) if stamp.is_some_and(|stamp| found == FileStamp { cells_end: 0, ..stamp }) => {
            let cells_end = stamp.map_or(0, |stamp| stamp.cells_end);
            io::copy(&mut Read::by_ref(&mut old).take(cells_end), new)?;
            is_first = false;
        }
        Some((old, _)) => match read(old) {
            Some((cells, found_metadata)) => {
                new.write_all(b"{\"cells\":[")?;
                for cell in cells {
                    write_cell(new, &cell, std::mem::take(&mut is_first))?;
                }
                if found_metadata.get("kernelspec").is_some() {
                    metadata = found_metadata;
                }
            }
            None => {
                // Keep the file, because it may belong to a user.
                std::fs::rename(path, path.with_extension("ipynb.broken"))?;
                new.write_all(b"{\"cells\":[")?;
            }
        },
    }
    write_cell(new, cell, is_first)?;
    let cells_end = new.stream_position()?;
    new.write_all(closing(&metadata).as_bytes())?;
    Ok(cells_end)
}

fn write_cell(new: &mut File, cell: &Value, is_first: bool) -> io::Result<()> {
    let mut text = if is_first { b"\n".to_vec() } else { b",\n".to_vec() };
    serde_json::to_writer(&mut text, cell)?;
    new.write_all(&text)
}

/// Opens the existing notebook and returns its metadata.
fn open(path: &Path) -> io::Result<Option<(File, FileStamp)>> {
    // A pipe at this path must not block the thread.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    let stamp = FileStamp {
        inode: found.ino(),
        size: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
        cells_end: 0,
    };
    Ok(Some((file, stamp)))
}

/// Reads the cells and the metadata of a notebook that another program has written.
fn read(file: File) -> Option<(Vec<Value>, Value)> {
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_NOTEBOOK_BYTES + 1).read_to_end(&mut text).ok()?;
    if text.len() as u64 > MAX_NOTEBOOK_BYTES {
        return None;
    }
    let mut notebook: Value = serde_json::from_slice(&text).ok()?;
    let cells = notebook.get_mut("cells")?.as_array_mut().map(std::mem::take)?;
    Some((cells, notebook.get("metadata").cloned().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u32) -> CellRecord {
        let mut record = CellRecord::new(&CallKey::new(format!("step-{number}"), 1), "1 + 1");
        record.execution_count = Some(u64::from(number));
        record.print(OutputStream::Stdout, "hello ");
        record.print(OutputStream::Stdout, "world\n");
        record
    }

    fn notebook(path: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn cells_are_appended_and_the_notebook_stays_valid() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/agent.ipynb");
        let metadata = json!({"kernelspec": {"name": "python3"}});
        let mut stamp = None;
        for number in 1..=3 {
            stamp = Some(write(&path, &record(number).to_json(), &metadata, stamp).unwrap());
            let notebook = notebook(&path);
            assert_eq!(notebook["cells"].as_array().unwrap().len(), number as usize);
            assert_eq!((&notebook["nbformat"], &notebook["nbformat_minor"]), (&json!(4), &json!(5)));
        }
        let last = &notebook(&path)["cells"][2];
        assert_eq!((&last["id"], &last["outputs"][0]["text"]), (&json!("1-step-3"), &json!("hello world\n")));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn notebook_edits_by_users_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.ipynb");
        let metadata = json!({"kernelspec": {"name": "python3"}});
        let stamp = write(&path, &record(1).to_json(), &metadata, None).unwrap();
        let mut changed = notebook(&path);
        changed["cells"][0]["source"] = json!("mine");
        std::fs::write(&path, serde_json::to_string_pretty(&changed).unwrap()).unwrap();
        write(&path, &record(2).to_json(), &metadata, Some(stamp)).unwrap();
        let after = notebook(&path);
        assert_eq!(
            (&after["cells"][0]["source"], &after["cells"][1]["id"]),
            (&json!("mine"), &json!("1-step-2"))
        );
    }

    #[test]
    fn invalid_notebook_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.ipynb");
        std::fs::write(&path, "not a notebook").unwrap();
        write(&path, &record(1).to_json(), &json!({}), None).unwrap();
        assert_eq!(notebook(&path)["cells"].as_array().unwrap().len(), 1);
        let aside = std::fs::read_to_string(folder.path().join("agent.ipynb.broken")).unwrap();
        assert_eq!(aside, "not a notebook");
    }

    #[test]
    fn display_update_replaces_the_output() {
        let mut record = CellRecord::new(&CallKey::new("step-1", 1), "show()");
        let mut shown = |kind, id: &str, text: &str| {
            let mut display = Display::new(kind);
            display.display_id = Some(id.to_owned());
            display.data.insert("text/plain".into(), json!(text));
            record.show(&display);
        };
        for number in 0..300 {
            shown(DisplayKind::Data, &format!("bar-{number}"), "0 %");
        }
        for number in 0..300 {
            shown(DisplayKind::Update, &format!("bar-{number}"), "100 %");
        }
        shown(DisplayKind::Update, "of-another-cell", "lost");
        let json = record.to_json();
        let outputs = json["outputs"].as_array().unwrap();
        assert_eq!(outputs.len(), 300);
        assert!(outputs.iter().all(|output| output["data"]["text/plain"] == "100 %"), "{}", outputs[0]);
        assert!(outputs.iter().all(|output| output["output_type"] == "display_data"), "{}", outputs[0]);
        assert_eq!(record.bytes, outputs.iter().map(|output| output.to_string().len()).sum::<usize>());
    }

    #[test]
    fn outputs_are_bounded_in_a_notebook() {
        let mut record = record(1);
        for _ in 0..300 {
            record.print(OutputStream::Stdout, &"ä".repeat(10_000));
        }
        let mut picture = Display::new(DisplayKind::Data);
        picture.data.insert("image/png".into(), json!("x".repeat(3 * 1024 * 1024)));
        for _ in 0..10 {
            record.show(&picture);
        }
        let json = record.to_json().to_string();
        assert!(json.len() < 12 * 1024 * 1024 && json.contains("more was printed"), "{}", json.len());
    }
}
