//! The kernels of the image, found through Jupyter's kernelspec directories.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use protocol::KernelChoice;
use serde::Deserialize;

/// Kernelspec directories. The first match for a name wins. The agent's own directory, below its home, comes first.
const DIRECTORIES: [&str; 3] =
    ["/opt/jupyter/share/jupyter/kernels", "/usr/local/share/jupyter/kernels", "/usr/share/jupyter/kernels"];
const HOME_DIRECTORY: &str = ".local/share/jupyter/kernels";
const CONNECTION_FILE: &str = "{connection_file}";
/// Larger `kernel.json` files are ignored.
const MAX_SPEC_BYTES: u64 = 64 * 1024;
const MAX_SPECS: usize = 64;
/// Kernel names that are preferred if a language has several kernels.
const USUAL_NAMES: [&str; 4] = ["python3", "python", "deno", "typescript"];
/// Kernel names that stand for a language.
const LANGUAGE_NAMES: [&str; 2] = ["python", "typescript"];

/// How to interrupt a kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InterruptMode {
    /// With SIGINT.
    #[default]
    Signal,
    /// With a message on the control channel.
    Message,
}

#[derive(Debug, Deserialize)]
struct RawSpec {
    argv: Vec<String>,
    #[serde(default)]
    display_name: String,
    #[serde(default)]
    language: String,
    #[serde(default)]
    interrupt_mode: InterruptMode,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// One kernel of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelSpec {
    /// The name of the kernelspec directory.
    pub(crate) name: String,
    pub(crate) display_name: String,
    /// In lower case.
    pub(crate) language: String,
    pub(crate) interrupt_mode: InterruptMode,
    /// Additional environment variables.
    pub(crate) environment: BTreeMap<String, String>,
    argv: Vec<String>,
    directory: PathBuf,
}

impl KernelSpec {
    /// The command line to start the kernel with this connection file.
    pub(crate) fn command(&self, connection_file: &str) -> Vec<String> {
        let mut argv: Vec<String> =
            self.argv.iter().map(|part| part.replace(CONNECTION_FILE, connection_file)).collect();
        // A kernelspec in a virtual environment names the environment's interpreter without a path.
        if let Some(program) = argv.first_mut()
            && matches!(program.as_str(), "python" | "python3")
            && let Some(prefix) = self.directory.ancestors().nth(4)
        {
            let own = prefix.join("bin").join(&*program);
            if own.exists() {
                *program = own.to_string_lossy().into_owned();
            }
        }
        argv
    }

    /// Whether the kernel supports Unix sockets, as everything based on ipykernel does.
    pub(crate) fn speaks_ipc(&self) -> bool {
        self.argv.iter().any(|part| part.starts_with("ipykernel"))
    }
}

/// Finds all kernels of the image, sorted by name.
pub(crate) fn find_all(home: &Path) -> Vec<KernelSpec> {
    let mut found: BTreeMap<String, KernelSpec> = BTreeMap::new();
    let directories = [home.join(HOME_DIRECTORY)].into_iter().chain(DIRECTORIES.map(PathBuf::from));
    for directory in directories {
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten().take(MAX_SPECS);
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !found.contains_key(&name)
                && let Some(spec) = read(&name, &entry.path())
            {
                found.insert(name, spec);
            }
        }
    }
    found.into_values().collect()
}

fn read(name: &str, directory: &Path) -> Option<KernelSpec> {
    if !is_name(name) {
        return None;
    }
    // A pipe at this path must not block the guest.
    let opened =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(directory.join("kernel.json"));
    let file = opened.ok()?;
    let found = file.metadata().ok()?;
    if !found.is_file() || found.len() > MAX_SPEC_BYTES {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_SPEC_BYTES).read_to_end(&mut text).ok()?;
    let raw: RawSpec = serde_json::from_slice(&text).ok()?;
    if raw.argv.is_empty() {
        return None;
    }
    let display_name = if raw.display_name.is_empty() { name.to_owned() } else { raw.display_name };
    Some(KernelSpec {
        name: name.to_owned(),
        display_name,
        language: raw.language.to_lowercase(),
        interrupt_mode: raw.interrupt_mode,
        environment: raw.env,
        argv: raw.argv,
        directory: directory.to_owned(),
    })
}

/// Whether the name is a directory name that Jupyter allows, of at most 64 bytes.
fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

/// Selects a kernel. `python` and `typescript` stand for the language if no kernel has that name. The error is a message
/// for the user that lists the available kernels.
pub(crate) fn choose(choice: &KernelChoice, specs: Vec<KernelSpec>) -> Result<KernelSpec, String> {
    let names: Vec<String> = specs.iter().map(|spec| format!("{} ({})", spec.name, spec.language)).collect();
    let there =
        if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
    let by_language = |language: &str, specs: Vec<KernelSpec>| {
        let usual = |spec: &KernelSpec| USUAL_NAMES.contains(&spec.name.as_str());
        let of_language = specs.into_iter().filter(|spec| spec.language == language);
        // The first of equals wins.
        of_language.min_by_key(|spec| !usual(spec))
    };
    match choice {
        KernelChoice::Name(name) => {
            let is_language =
                LANGUAGE_NAMES.contains(&name.as_str()) && specs.iter().all(|spec| spec.name != *name);
            let found = if is_language {
                by_language(name, specs)
            } else {
                specs.into_iter().find(|spec| spec.name == *name)
            };
            found.ok_or_else(|| format!("this image has no kernel called `{name}`; {there}"))
        }
        KernelChoice::Language(language) => by_language(language, specs)
            .ok_or_else(|| format!("this image has no notebook kernel for {language}; {there}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(home: &Path, name: &str, json: &str) {
        let directory = home.join(HOME_DIRECTORY).join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("kernel.json"), json).unwrap();
    }

    fn own(home: &Path) -> Vec<KernelSpec> {
        find_all(home).into_iter().filter(|spec| spec.directory.starts_with(home)).collect()
    }

    #[test]
    fn kernels_are_found_by_language_and_by_name() {
        let home = tempfile::tempdir().unwrap();
        write(home.path(), "a-python", r#"{"argv": ["x"], "language": "Python"}"#);
        write(
            home.path(),
            "python3",
            r#"{"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Python", "language": "python"}"#,
        );
        write(
            home.path(),
            "deno",
            r#"{"argv": ["deno"], "language": "typescript", "interrupt_mode": "message"}"#,
        );
        let choose = |choice: KernelChoice| choose(&choice, own(home.path()));
        let python = choose(KernelChoice::Language("python".into())).unwrap();
        assert_eq!((python.name.as_str(), python.speaks_ipc()), ("python3", true));
        assert_eq!(python.command("/tmp/c.json").last().unwrap(), "/tmp/c.json");
        let deno = choose(KernelChoice::Name("deno".into())).unwrap();
        assert_eq!((deno.interrupt_mode, deno.speaks_ipc()), (InterruptMode::Message, false));
        let aliases =
            ["python", "typescript"].map(|name| choose(KernelChoice::Name(name.into())).unwrap().name);
        assert_eq!(aliases, ["python3", "deno"]);
        assert!(choose(KernelChoice::Name("rust".into())).unwrap_err().contains("no kernel called `rust`"));
        let missing = choose(KernelChoice::Language("rust".into())).unwrap_err();
        assert!(missing.contains("no notebook kernel for rust") && missing.contains("deno (typescript)"));
    }

    #[test]
    fn kernel_in_a_virtual_environment_uses_its_interpreter() {
        let home = tempfile::tempdir().unwrap();
        write(home.path(), "python3", r#"{"argv": ["python3", "-m", "x"]}"#);
        let bin = home.path().join(".local/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("python3"), "").unwrap();
        let program = own(home.path())[0].command("c").remove(0);
        assert_eq!(program, bin.join("python3").to_string_lossy());
    }

    #[test]
    fn broken_and_hostile_specs_are_skipped() {
        let home = tempfile::tempdir().unwrap();
        write(home.path(), "empty", r#"{"argv": []}"#);
        write(home.path(), "broken", "{");
        write(home.path(), "a b", r#"{"argv": ["x"]}"#);
        write(home.path(), "huge", &format!(r#"{{"argv": ["{}"]}}"#, "x".repeat(100_000)));
        assert!(own(home.path()).is_empty());
    }
}
