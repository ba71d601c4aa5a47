//! The recipe of an image: package lists, hashes, stages, files. The recipe of the image `default` is embedded in
//! this program.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::ImageError;
use crate::stage::Stage;

/// The Debian release of the image.
pub const SUITE: &str = "trixie";
/// The Debian package versions of the last build, to show what a new build changes.
const LOCK: &str = include_str!("../../../image/debian.lock");

/// The entries of the recipe folder that go into an image.
const PARTS: [&str; 5] = ["packages.txt", "python", "node", "stages", "files"];

static ENTRIES: &[Entry<'static>] = include!(concat!(env!("OUT_DIR"), "/recipe_table.rs"));

#[derive(Debug, Clone)]
struct Entry<'a> {
    path: &'a str,
    content: Content<'a>,
}

#[derive(Debug, Clone)]
enum Content<'a> {
    File { mode: u32, bytes: &'a [u8] },
    Link(&'a str),
}

#[derive(Debug, Clone)]
pub struct Recipe {
    entries: Vec<OwnedEntry>,
    lock: Option<String>,
}

#[derive(Debug, Clone)]
struct OwnedEntry {
    path: String,
    content: OwnedContent,
}

#[derive(Debug, Clone)]
enum OwnedContent {
    File { mode: u32, bytes: Vec<u8> },
    Link(String),
}

impl Recipe {
    /// The recipe of the image `default`, which is embedded in this program.
    #[must_use]
    pub fn embedded() -> Self {
        let own = |entry: &Entry<'_>| OwnedEntry {
            path: entry.path.to_owned(),
            content: match entry.content {
                Content::File { mode, bytes } => OwnedContent::File { mode, bytes: bytes.to_vec() },
                Content::Link(target) => OwnedContent::Link(target.to_owned()),
            },
        };
        Self { entries: ENTRIES.iter().map(own).collect(), lock: Some(LOCK.to_owned()) }
    }

    /// Reads a recipe from a folder with the same structure.
    ///
    /// # Errors
    /// The folder cannot be read, or a stage is missing.
    pub fn read(folder: &Path) -> Result<Self, ImageError> {
        let mut recipe =
            Self { entries: Vec::new(), lock: fs::read_to_string(folder.join("debian.lock")).ok() };
        for part in PARTS {
            if folder.join(part).exists() {
                recipe.add(folder, Path::new(part)).map_err(ImageError::at("reading the recipe", folder))?;
            }
        }
        for stage in Stage::ALL.into_iter().skip(1) {
            let path = format!("stages/{}", stage.name());
            if !recipe.entries.iter().any(|entry| entry.path == path) {
                let (what, why) = (folder.display().to_string(), format!("a recipe needs a program {path}"));
                return Err(ImageError::BadRecipe { what, why });
            }
        }
        Ok(recipe)
    }

    fn add(&mut self, folder: &Path, path: &Path) -> io::Result<()> {
        let full = folder.join(path);
        let metadata = fs::symlink_metadata(&full)?;
        if metadata.is_dir() {
            let mut names: Vec<_> =
                fs::read_dir(&full)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
            names.sort();
            return names.iter().try_for_each(|name| self.add(folder, &path.join(name)));
        }
        let content = if metadata.is_symlink() {
            OwnedContent::Link(fs::read_link(&full)?.to_string_lossy().into_owned())
        } else {
            let mode = if metadata.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
            OwnedContent::File { mode, bytes: fs::read(&full)? }
        };
        self.entries.push(OwnedEntry { path: path.to_string_lossy().into_owned(), content });
        Ok(())
    }

    /// The digest of the whole recipe.
    #[must_use]
    pub fn hash(&self) -> String {
        self.stage_keys("").pop().map(|(_, key)| key).unwrap_or_default()
    }

    /// Each stage with the digest of everything that it and earlier stages depend on; `base` identifies the base
    /// image of the first stage.
    pub(crate) fn stage_keys(&self, base: &str) -> Vec<(Stage, String)> {
        let mut above = base.to_owned();
        Stage::ALL
            .into_iter()
            .map(|stage| {
                let mut hasher = Sha256::new();
                hasher.update(above.as_bytes());
                hasher.update(SUITE);
                for entry in self.entries.iter().filter(|entry| stage.depends_on(&entry.path)) {
                    entry.add_to(&mut hasher);
                }
                above = hex(&hasher.finalize())[..24].to_owned();
                (stage, above.clone())
            })
            .collect()
    }

    /// Writes the recipe into a folder that does not exist yet.
    pub(crate) fn write_to(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        for entry in &self.entries {
            let path = folder.join(&entry.path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            match &entry.content {
                OwnedContent::File { mode, bytes } => {
                    fs::write(&path, bytes)?;
                    fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
                }
                OwnedContent::Link(target) => symlink(target, &path)?,
            }
        }
        for path in directories_of(folder)? {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// The differences between a list of `name=version` lines and the lock file, one line each.
    #[must_use]
    pub fn compare_with_lock(&self, packages: &str) -> Vec<String> {
        self.lock.as_ref().map(|lock| compare(lock, packages)).unwrap_or_default()
    }
}

impl OwnedEntry {
    fn add_to(&self, hasher: &mut Sha256) {
        hasher.update(format!("\n{} ", self.path));
        match &self.content {
            OwnedContent::File { mode, bytes } => {
                hasher.update(format!("{mode:o} {}\n", bytes.len()));
                hasher.update(bytes);
            }
            OwnedContent::Link(target) => hasher.update(format!("-> {target}")),
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn directories_of(folder: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let mut found = vec![folder.to_owned()];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(directories_of(&entry.path())?);
        }
    }
    Ok(found)
}

fn compare(locked: &str, built: &str) -> Vec<String> {
    let parse = |text: &str| -> std::collections::BTreeMap<String, String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.split_once('='))
            .map(|(name, version)| (name.into(), version.into()))
            .collect()
    };
    let (locked, built) = (parse(locked), parse(built));
    let mut lines: Vec<String> = built
        .iter()
        .filter_map(|(name, version)| match locked.get(name) {
            Some(before) if before == version => None,
            Some(before) => Some(format!("{name} {before} -> {version}")),
            None => Some(format!("{name} {version} is new")),
        })
        .collect();
    lines.extend(
        locked.keys().filter(|name| !built.contains_key(*name)).map(|name| format!("{name} is gone")),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_keys_are_distinct_and_every_file_belongs_to_a_stage() {
        let recipe = Recipe::embedded();
        let keys = recipe.stage_keys("");
        let distinct: std::collections::BTreeSet<&String> = keys.iter().map(|(_, key)| key).collect();
        assert_eq!(distinct.len(), Stage::ALL.len());
        for entry in &recipe.entries {
            let is_source = entry.path.ends_with(".in");
            assert!(
                is_source || Stage::ALL.iter().any(|stage| stage.depends_on(&entry.path)),
                "{}",
                entry.path
            );
        }
    }

    #[test]
    fn every_package_of_python_and_node_has_a_hash() {
        let text = |path: &str| -> String {
            let entries = Recipe::embedded().entries;
            let entry = entries.into_iter().find(|entry| entry.path == path).unwrap();
            let OwnedContent::File { bytes, .. } = entry.content else { panic!("{path} is a link") };
            String::from_utf8(bytes).unwrap()
        };
        let requirements = text("python/requirements.txt").replace("\\\n", " ");
        for line in requirements.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.contains("==") && line.contains("--hash=sha256:"), "{line}");
        }
        let lock: serde_json::Value = serde_json::from_str(&text("node/package-lock.json")).unwrap();
        for (path, entry) in lock["packages"].as_object().unwrap().iter().filter(|(path, _)| !path.is_empty())
        {
            assert!(entry["integrity"].as_str().is_some_and(|hash| hash.starts_with("sha512-")), "{path}");
            assert!(entry.get("resolved").is_none(), "{path} names a registry");
        }
    }

    #[test]
    fn a_written_recipe_reads_back_identically() {
        let folder = tempfile::tempdir().unwrap();
        let (recipe, copy) = (Recipe::embedded(), folder.path().join("recipe"));
        recipe.write_to(&copy).unwrap();
        assert_eq!(Recipe::read(&copy).unwrap().hash(), recipe.hash());
        let stage = fs::metadata(folder.path().join("recipe/stages/packages")).unwrap();
        assert_eq!(stage.permissions().mode() & 0o777, 0o755);
        assert!(folder.path().join("recipe/packages.txt").is_file());
    }

    #[test]
    fn differences_from_the_lock_are_listed_per_package() {
        let lines = compare("# head\na=1\nb=1\nc=1\n", "a=1\nb=2\nd=1\n");
        assert_eq!(lines, ["b 1 -> 2", "d 1 is new", "c is gone"]);
    }
}
