//! Where the result of a job goes: a zip in a folder or at a path of its own, or the files of the zip.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The name of the zip in a folder.
pub(crate) const ZIP_NAME: &str = "output.zip";

/// Where to put the result of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResultDestination {
    /// The zip, as `output.zip` in this folder.
    ZipIn(PathBuf),
    /// The zip, as this file.
    ZipAs(PathBuf),
    /// The files of the zip, in this folder.
    Unpacked(PathBuf),
}

/// The folder for the files of a job if the user names none.
pub(crate) fn default_folder(job: &str) -> PathBuf {
    PathBuf::from(format!("caisson-{job}"))
}

impl ResultDestination {
    /// What `--out PATH` means for the zip. A folder, a path with a slash at its end and a name without `.zip` are
    /// folders; everything else is the file.
    pub(crate) fn of_zip(path: &Path) -> Self {
        let has_slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let is_zip = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("zip"));
        if has_slash || path.is_dir() || !(is_zip || path.exists()) {
            Self::ZipIn(path.to_owned())
        } else {
            Self::ZipAs(path.to_owned())
        }
    }

    /// Fails early if the result could not be stored there, or in a new folder in the current one. Writes nothing.
    pub(crate) fn check_or_default(destination: Option<&Self>) -> Result<()> {
        match destination {
            Some(destination) => destination.check(),
            None => check_folder(Path::new(".")),
        }
    }

    /// Fails early if the result could not be stored there. Writes nothing.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::ZipIn(folder) => {
                let file = folder.join(ZIP_NAME);
                if file.is_dir() {
                    bail!(
                        "{} is a folder, but the result would be stored there; choose another folder with --out",
                        file.display()
                    );
                }
                check_folder(folder)
            }
            Self::ZipAs(file) => {
                check_new_file(file)?;
                check_folder(file.parent().unwrap_or(Path::new("")))
            }
            Self::Unpacked(folder) => check_folder(folder),
        }
    }
}

/// An empty file, as `mktemp` creates it, counts as new.
fn check_new_file(file: &Path) -> Result<()> {
    let shown = file.display();
    match file.metadata() {
        Ok(found) if !found.is_file() => {
            bail!("{shown} is not a file; write to standard output with --out -")
        }
        Ok(found) if found.len() > 0 => bail!("{shown} exists; remove it, or choose another name with --out"),
        _ => Ok(()),
    }
}

/// Checks that the folder exists or can be created, and that files can be written into it.
fn check_folder(folder: &Path) -> Result<()> {
    let folder = std::path::absolute(Path::new(".").join(folder)).context("reading the current folder")?;
    let there = folder.ancestors().find(|path| path.exists()).unwrap_or(&folder);
    if !there.is_dir() {
        bail!("{} is not a folder; choose another one with --out", there.display());
    }
    // Writing may fail despite sufficient permissions, for example on a full file system.
    tempfile::tempfile_in(there)
        .map(drop)
        .with_context(|| format!("cannot write into {}; choose another folder with --out", there.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn refused(destination: &ResultDestination) -> String {
        destination.check().unwrap_err().to_string()
    }

    #[test]
    fn out_is_a_zip_file_or_a_folder() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("folder.zip")).unwrap();
        fs::write(at("empty"), "").unwrap();
        for folder in ["new", "new/", "new.zip/", "folder.zip"] {
            assert_eq!(
                ResultDestination::of_zip(&at(folder)),
                ResultDestination::ZipIn(at(folder)),
                "{folder}"
            );
        }
        for file in ["x.zip", "X.ZIP", "new/x.zip", "empty"] {
            assert_eq!(ResultDestination::of_zip(&at(file)), ResultDestination::ZipAs(at(file)), "{file}");
        }
    }

    #[test]
    fn result_location_is_checked_before_the_job_runs() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::write(at("file"), "").unwrap();
        fs::create_dir_all(at("taken/output.zip")).unwrap();
        let kinds: [fn(PathBuf) -> ResultDestination; 2] =
            [ResultDestination::ZipIn, ResultDestination::Unpacked];
        for kind in kinds {
            kind(at("new/one")).check().unwrap();
            kind(root.path().to_owned()).check().unwrap();
            assert!(refused(&kind(at("file"))).contains("file is not a folder"));
            assert!(refused(&kind(at("file/below"))).contains("file is not a folder"));
            let nowhere = refused(&kind("/proc/nowhere".into()));
            assert!(nowhere.contains("cannot write into /proc"), "{nowhere}");
        }
        assert!(refused(&ResultDestination::ZipIn(at("taken"))).contains("output.zip is a folder"));
        assert!(!at("new").exists(), "nothing is made yet");
    }

    #[test]
    fn existing_file_is_not_overwritten_unless_it_is_empty() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::write(at("empty.zip"), "").unwrap();
        fs::write(at("full.zip"), "x").unwrap();
        ResultDestination::ZipAs(at("empty.zip")).check().unwrap();
        ResultDestination::ZipAs(at("new.zip")).check().unwrap();
        assert!(refused(&ResultDestination::ZipAs(at("full.zip"))).contains("full.zip exists"));
        assert!(refused(&ResultDestination::ZipAs("/dev/null".into())).contains("--out -"));
    }
}
