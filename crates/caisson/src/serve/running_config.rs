//! The configuration that a running server uses, and how the file differs from it by now.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use serde_json::{Value, json};

use super::reload::Changes;
use crate::config::Config;

/// Reads the configuration again.
type Load = Box<dyn Fn() -> Result<Config> + Send + Sync>;

/// The configuration of a server.
pub(crate) struct RunningConfig {
    current: Mutex<Config>,
    load: Load,
}

impl RunningConfig {
    pub(crate) fn new(config: Config, load: impl Fn() -> Result<Config> + Send + Sync + 'static) -> Self {
        Self { current: Mutex::new(config), load: Box::new(load) }
    }

    /// A configuration that stays as it is.
    pub(crate) fn fixed(config: Config) -> Self {
        Self::new(config.clone(), move || Ok(config.clone()))
    }

    /// The settings in use.
    pub(crate) fn current(&self) -> Config {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads and checks the configuration without applying it.
    pub(crate) fn load(&self) -> Result<Config> {
        (self.load)()
    }

    /// Records the settings that a reload has applied. The others are in use after a restart.
    pub(crate) fn set_applied(&self, new: &Config) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.jobs = new.jobs.clone();
        current.log.clone_from(&new.log);
    }

    /// The server for `doctor` and `config check`: its version, its folder, its configuration file, and the settings
    /// that have changed in the file since.
    pub(crate) fn describe(&self) -> Value {
        let current = self.current();
        let file = current.file.as_ref().map(|file| file.display().to_string());
        let mut config = json!({ "file": file });
        match self.load() {
            Ok(new) => {
                let changes = Changes::between(&current, &new);
                config["reload"] = json!(changes.immediate);
                config["restart"] = json!(changes.after_restart);
            }
            // The message itself may quote a secret that is in the wrong place, and viewers can read this.
            Err(_) => config["error"] = json!("`caisson config check` on its host says what is wrong"),
        }
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "data": current.data.display().to_string(),
            "config": config,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::HostArguments;

    #[test]
    fn changes_of_the_file_are_described_until_they_are_applied() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("caisson.toml");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        let arguments = HostArguments { config: Some(file.clone()), ..HostArguments::default() };
        write("[jobs]\nmax_running = 3\n");
        let load = move || Config::load(&arguments, &[], true);
        let running = RunningConfig::new(load().unwrap(), load);
        let described = running.describe();
        assert_eq!(described["config"]["file"], file.display().to_string());
        assert_eq!(
            (&described["config"]["reload"], &described["config"]["restart"]),
            (&json!([]), &json!([]))
        );

        write("listen = [\"127.0.0.1:9\"]\n[jobs]\nmax_running = 4\n");
        let described = running.describe();
        assert_eq!(described["config"]["reload"], json!(["jobs.max_running"]));
        assert_eq!(described["config"]["restart"], json!(["listen"]));

        running.set_applied(&running.load().unwrap());
        let described = running.describe();
        assert_eq!(
            (&described["config"]["reload"], &described["config"]["restart"]),
            (&json!([]), &json!(["listen"]))
        );

        write("[secrets]\nTOKEN = \"sk-in-the-wrong-place\"\n");
        let described = running.describe();
        assert!(described["config"]["error"].is_string(), "{described}");
        assert!(!described.to_string().contains("sk-in-the-wrong-place"), "{described}");
    }
}
