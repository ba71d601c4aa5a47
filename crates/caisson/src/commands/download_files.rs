//! `caisson download --file` and `--all`: the files that a finished job leaves beside `output.zip`.

use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::transfer::receive;
use crate::client::Client;

/// The files of a job.
#[derive(Deserialize)]
pub(super) struct JobFiles {
    /// `None` if the job has no `output.zip`.
    result: Option<String>,
    /// The files beside it; none until the job has ended.
    downloads: Vec<Download>,
}

/// A file beside `output.zip`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Download {
    name: String,
    url: String,
}

impl JobFiles {
    pub(super) async fn of(client: &Client, id: &str) -> Result<Self> {
        let job = client.get(&format!("/v1/jobs/{id}")).await?;
        serde_json::from_value(job).context("the server does not list downloads; is it an older version?")
    }

    pub(super) fn has_result(&self) -> bool {
        self.result.is_some()
    }

    pub(super) fn all(&self) -> Result<Vec<&Download>> {
        if self.result.is_none() && self.downloads.is_empty() {
            bail!("the job has no files yet; it has them once it has ended");
        }
        Ok(self.downloads.iter().collect())
    }

    pub(super) fn choose(&self, names: &[String]) -> Result<Vec<&Download>> {
        names.iter().map(|name| self.find(name)).collect()
    }

    fn find(&self, name: &str) -> Result<&Download> {
        self.downloads.iter().find(|download| download.name == name).with_context(|| {
            let known: Vec<&str> = self.downloads.iter().map(|download| download.name.as_str()).collect();
            match known.is_empty() {
                true => format!("there is no `{name}`: the job has not ended"),
                false => format!("there is no `{name}`; the job has {}", known.join(", ")),
            }
        })
    }
}

/// Writes a file to standard output.
pub(super) async fn print_file(client: &Client, download: &Download) -> Result<()> {
    receive(client, &download.url, &download.name, &mut std::io::stdout()).await.map(drop)
}

/// Stores a file below a folder. The file appears complete or not at all.
pub(super) async fn store(client: &Client, download: &Download, folder: &Path) -> Result<PathBuf> {
    let path = folder.join(inside(&download.name)?);
    let parent = path.parent().unwrap_or(folder);
    fs::create_dir_all(parent).with_context(|| format!("creating the folder {}", parent.display()))?;
    let partial = path.with_added_extension("partial");
    let write = async {
        let mut file = File::create(&partial).with_context(|| format!("writing {}", partial.display()))?;
        receive(client, &download.url, &download.name, &mut file).await?;
        fs::rename(&partial, &path).with_context(|| format!("writing {}", path.display()))
    };
    let written = write.await;
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.map(|()| path)
}

/// The relative path of a file. A server that is not trusted could name one outside of the folder.
fn inside(name: &str) -> Result<&Path> {
    let path = Path::new(name);
    let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !is_inside {
        bail!("the server named a file outside of the folder: {name:?}");
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_the_server_stay_inside_the_folder() {
        assert_eq!(inside("audit/files.jsonl").unwrap(), Path::new("audit/files.jsonl"));
        for name in ["", "/etc/passwd", "../x", "a/../../x"] {
            assert!(inside(name).is_err(), "{name}");
        }
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let download = |name: &str| Download { name: name.into(), url: String::new() };
        let downloads = vec![download("manifest.json"), download("memory.json")];
        let finished = JobFiles { result: None, downloads };
        assert_eq!(finished.find("memory.json").unwrap().name, "memory.json");
        let refused = finished.find("x").unwrap_err().to_string();
        assert!(refused.contains("the job has manifest.json, memory.json"), "{refused}");
        let running = JobFiles { result: None, downloads: Vec::new() };
        assert!(running.find("x").unwrap_err().to_string().contains("has not ended"));
        assert!(running.all().is_err());
    }
}
