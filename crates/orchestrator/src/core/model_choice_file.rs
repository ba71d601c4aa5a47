//! The file with the model that an admin chose on this server.
//!
//! It has the API key in clear, so only the server's user can read it, and it is never part of a backup. Model and key
//! are in one file, so that a key never belongs to the model of an earlier choice.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use model::ModelChoice;

use crate::error::OrchestratorError;

const FILE: &str = "model.json";
/// Read and write for the owner only.
const PRIVATE_MODE: u32 = 0o600;

pub(crate) struct ModelChoiceFile(PathBuf);

impl ModelChoiceFile {
    /// The file of a data folder. It need not exist.
    pub(crate) fn of_folder(folder: &Path) -> Self {
        Self(folder.join(FILE))
    }

    /// The stored choice. A file that cannot be read is an error: without its model, jobs would wait for no visible
    /// reason.
    pub(crate) fn read(&self) -> Result<Option<ModelChoice>, OrchestratorError> {
        let text = match fs::read_to_string(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.and_then(|text| self.protect().map(|()| text)),
        };
        let choice = text.and_then(|text| {
            let advice = "remove the file and choose the model again";
            ModelChoice::from_file(&text).map_err(|why| io::Error::other(format!("{why}; {advice}")))
        });
        choice
            .map(Some)
            .map_err(OrchestratorError::io(format!("reading the chosen model in {}", self.0.display())))
    }

    /// Takes away the permissions that a copy of the data folder may have added.
    fn protect(&self) -> io::Result<()> {
        if fs::metadata(&self.0)?.permissions().mode() & 0o077 == 0 {
            return Ok(());
        }
        fs::set_permissions(&self.0, fs::Permissions::from_mode(PRIVATE_MODE))
    }

    /// Replaces the file, completely or not at all.
    pub(crate) fn write(&self, choice: &ModelChoice) -> Result<(), OrchestratorError> {
        self.replace(&choice.to_file())
            .map_err(OrchestratorError::io(format!("writing the chosen model to {}", self.0.display())))
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let partial = self.0.with_extension("partial");
        // One that was left behind may have other permissions.
        remove_if_there(&partial)?;
        let mut file = OpenOptions::new().create_new(true).write(true).mode(PRIVATE_MODE).open(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&partial, &self.0)?;
        self.sync_folder()
    }

    /// Removes the file, if it exists.
    pub(crate) fn remove(&self) -> Result<(), OrchestratorError> {
        remove_if_there(&self.0)
            .and_then(|()| self.sync_folder())
            .map_err(OrchestratorError::io(format!("removing the chosen model in {}", self.0.display())))
    }

    /// Makes a rename or removal survive a power failure.
    fn sync_folder(&self) -> io::Result<()> {
        self.0.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use model::NewModelChoice;

    use super::*;

    fn choice(model: &str) -> ModelChoice {
        let json = format!(r#"{{"provider": "openai", "model": "{model}", "key": "sk-very-secret"}}"#);
        serde_json::from_str::<NewModelChoice>(&json).unwrap().check().unwrap()
    }

    fn mode(file: &Path) -> u32 {
        fs::metadata(file).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn chosen_model_is_stored_in_a_file_of_the_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = ModelChoiceFile::of_folder(folder.path());
        assert_eq!(file.read().unwrap(), None);
        // What a killed server left behind must not lend its permissions.
        fs::write(folder.path().join("model.partial"), "half").unwrap();
        for model in ["a", "b"] {
            file.write(&choice(model)).unwrap();
            assert_eq!(mode(&file.0), 0o600);
            assert_eq!(file.read().unwrap(), Some(choice(model)));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file is left");
        fs::set_permissions(&file.0, fs::Permissions::from_mode(0o644)).unwrap();
        file.read().unwrap();
        assert_eq!(mode(&file.0), 0o600, "a copy that others can read is protected again");
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.read().unwrap(), None);
    }

    #[test]
    fn unreadable_choice_is_an_error_that_names_the_file_and_not_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = ModelChoiceFile::of_folder(folder.path());
        fs::write(&file.0, r#"{"model": "openai/a", "key": ["sk-very-secret"]}"#).unwrap();
        let error = file.read().unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.to_string().contains("model.json"), "{error}");
        assert!(source.contains("choose the model again") && !source.contains("sk-"), "{source}");
    }
}
