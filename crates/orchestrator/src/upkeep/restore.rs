//! Creates a data folder from a backup. Everything is unpacked into a temporary folder and checked against the
//! digests before it is moved into place.
//!
//! The sandboxes of jobs that ran at the time of the backup are not part of it, and may still belong to the original
//! server. So each such job gets the id of a sandbox that never existed: the next server finds it missing and handles
//! it as a lost sandbox.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use job::{EventBody, Fence, JobId};
use sandbox::SandboxId;
use store::{DATABASE_FILE, LocalDatabase, trust_old_keys};
use tar::EntryType;

use crate::data_folder::DataFolder;
use crate::error::OrchestratorError;
use crate::upkeep::backup::{BackupReport, FORMAT, Hashed, MANIFEST, Manifest, ManifestFile};

/// The folder for unpacking, inside the new data folder.
const UNPACK_FOLDER: &str = "restore.partial";
/// Maximum size of the manifest.
const MAX_MANIFEST_BYTES: u64 = 1024 * 1024 * 1024;

/// Creates a data folder from a backup. On failure the folder is as empty as before.
///
/// # Errors
/// The folder is in use or not empty, the archive is damaged or has an unknown format, or the disk is full.
pub async fn restore(
    database: Arc<dyn LocalDatabase>,
    archive: &Path,
    data: &Path,
) -> Result<BackupReport, OrchestratorError> {
    check_empty(data)?;
    let _lock = DataFolder::open(data)?;
    let restored = fill(database, archive, data).await;
    if restored.is_err() {
        for name in [UNPACK_FOLDER, "jobs"] {
            let _ = fs::remove_dir_all(data.join(name));
        }
        let keys = ["audit.key", "audit.pub", "audit.pub.old"];
        for name in [DATABASE_FILE, "caisson.db-wal", "caisson.db-shm", "lock"].into_iter().chain(keys) {
            let _ = fs::remove_file(data.join(name));
        }
    }
    restored
}

fn check_empty(data: &Path) -> Result<(), OrchestratorError> {
    let entries = match fs::read_dir(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(OrchestratorError::io(format!("reading {}", data.display())))?,
    };
    let names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if names.is_empty() {
        return Ok(());
    }
    if is_interrupted_restore(data, &names) {
        // Fails if another process is restoring into this folder.
        let _alone = DataFolder::open(data)?;
        for name in [UNPACK_FOLDER, "jobs"] {
            match fs::remove_dir_all(data.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(OrchestratorError::io(format!(
                        "removing what is left in {}",
                        data.display()
                    ))(error));
                }
                _ => {}
            }
        }
        return Ok(());
    }
    // If the folder is in use, return that error instead.
    if data.join("lock").exists() {
        drop(DataFolder::open(data)?);
    }
    Err(OrchestratorError::Backup(format!(
        "{} is not empty; give a folder that is empty or does not exist",
        data.display()
    )))
}

/// Whether the folder contains only the leftovers of a killed restore. The database is moved into place last, so it
/// is missing.
fn is_interrupted_restore(data: &Path, names: &[String]) -> bool {
    let is_begun = names.iter().any(|name| name == UNPACK_FOLDER);
    let has_jobs = fs::read_dir(data.join("jobs")).is_ok_and(|mut jobs| jobs.next().is_some());
    names.iter().all(|name| [UNPACK_FOLDER, "jobs", "lock"].contains(&name.as_str()))
        && (is_begun || !has_jobs)
}

async fn fill(
    database: Arc<dyn LocalDatabase>,
    archive: &Path,
    data: &Path,
) -> Result<BackupReport, OrchestratorError> {
    let unpack_folder = data.join(UNPACK_FOLDER);
    let work = {
        let (archive, unpack_folder) = (archive.to_owned(), unpack_folder.clone());
        let database = Arc::clone(&database);
        tokio::task::spawn_blocking(move || {
            let manifest = unpack(&archive, &unpack_folder)?;
            database.check_copy(&unpack_folder.join(DATABASE_FILE))?;
            let jobs = database.jobs_in_copy(&unpack_folder.join(DATABASE_FILE))?;
            Ok::<_, OrchestratorError>((manifest, jobs))
        })
    };
    let (manifest, jobs) = work
        .await
        .map_err(|error| OrchestratorError::Backup(format!("unpacking ended unexpectedly: {error}")))??;
    put_in_place(&unpack_folder, data)?;
    // The private signing key is not in a backup. Trust the original server's keys, so that its signatures stay
    // valid.
    let signed_by = match &manifest.audit_keys {
        Some(keys) => keys.clone(),
        None => database.signing_keys(data)?,
    };
    trust_old_keys(data, &signed_by)?;
    let store = database.open(data)?;
    let made_at = &manifest.created;
    for job in jobs.iter().filter(|job| !job.state.is_over()) {
        let text = format!("restored from a backup of {made_at}");
        let mut events = vec![EventBody::Note { text }.into()];
        if job.sandbox.is_some() {
            events.push(EventBody::SandboxRequested { sandbox: SandboxId::generate() }.into());
        }
        store.append(job.job_id, Fence::Anybody, events).await?;
    }
    Ok(BackupReport {
        jobs: jobs.len(),
        unfinished: jobs.iter().filter(|job| !job.state.is_over()).count(),
        files: manifest.files.len(),
        bytes: manifest.files.iter().map(|file| file.size).sum(),
        created: manifest.created,
        gone: Vec::new(),
    })
}

fn damaged(why: impl std::fmt::Display) -> OrchestratorError {
    OrchestratorError::Backup(format!("the backup is damaged: {why}"))
}

/// Unpacks and checks everything.
fn unpack(archive: &Path, unpack_folder: &Path) -> Result<Manifest, OrchestratorError> {
    let file =
        File::open(archive).map_err(OrchestratorError::io(format!("reading {}", archive.display())))?;
    let decoder = zstd::Decoder::with_buffer(BufReader::new(file)).map_err(damaged)?;
    let mut tar = tar::Archive::new(decoder);
    let mut found: HashMap<String, ManifestFile> = HashMap::new();
    for entry in tar.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let path = entry.path().map_err(damaged)?.into_owned();
        if path == Path::new(MANIFEST) {
            let mut text = String::new();
            entry.take(MAX_MANIFEST_BYTES).read_to_string(&mut text).map_err(damaged)?;
            return compare(&text, &found);
        }
        if entry.header().entry_type() != EntryType::Regular || !is_ours(&path) {
            return Err(damaged(format!("{} does not belong in it", path.display())));
        }
        let mode = entry.header().mode().map_err(damaged)? & 0o777;
        let unpacked = unpack_file(&mut entry, unpack_folder, &path, mode)?;
        found.insert(unpacked.path.clone(), unpacked);
    }
    Err(damaged("it ends before its list of files"))
}

/// Whether the path is the database, or a file in the folder of a job.
fn is_ours(path: &Path) -> bool {
    let parts: Option<Vec<&str>> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    match parts.as_deref() {
        Some([name]) => *name == DATABASE_FILE,
        Some(["jobs", job, _, ..]) => JobId::from_str(job).is_ok(),
        _ => false,
    }
}

fn unpack_file(
    entry: &mut impl Read,
    unpack_folder: &Path,
    path: &Path,
    mode: u32,
) -> Result<ManifestFile, OrchestratorError> {
    let target = unpack_folder.join(path);
    let writing = || OrchestratorError::io(format!("writing {}", target.display()));
    if let Some(folder) = target.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(writing())?;
    }
    let mut file =
        OpenOptions::new().create_new(true).write(true).mode(0o600).open(&target).map_err(writing())?;
    let mut reader = Hashed::new(entry);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = reader.read(&mut buffer).map_err(damaged)?;
        if count == 0 {
            break;
        }
        io::Write::write_all(&mut file, &buffer[..count]).map_err(writing())?;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
        .and_then(|()| file.sync_all())
        .map_err(writing())?;
    let (sha256, size) = reader.finish();
    Ok(ManifestFile { path: path.to_string_lossy().into_owned(), size, mode, sha256 })
}

fn compare(text: &str, found: &HashMap<String, ManifestFile>) -> Result<Manifest, OrchestratorError> {
    let manifest: Manifest = serde_json::from_str(text).map_err(damaged)?;
    if manifest.format != FORMAT {
        return Err(OrchestratorError::Backup(format!(
            "the backup has form {}, this caisson knows {FORMAT}; use caisson {}",
            manifest.format, manifest.caisson
        )));
    }
    for file in &manifest.files {
        match found.get(&file.path) {
            Some(unpacked) if unpacked == file => {}
            Some(_) => return Err(damaged(format!("{} is not what was backed up", file.path))),
            None => return Err(damaged(format!("{} is missing", file.path))),
        }
    }
    if manifest.files.len() != found.len() || !found.contains_key(DATABASE_FILE) {
        return Err(damaged("its list of files does not fit its files"));
    }
    Ok(manifest)
}

/// Moves the jobs first and the database last: a folder without a database is not a data folder.
fn put_in_place(unpack_folder: &Path, data: &Path) -> Result<(), OrchestratorError> {
    let jobs = unpack_folder.join("jobs");
    let mut moves: Vec<(PathBuf, PathBuf)> = Vec::new();
    if let Ok(entries) = fs::read_dir(&jobs) {
        moves.extend(entries.flatten().map(|job| (job.path(), data.join("jobs").join(job.file_name()))));
    }
    moves.push((unpack_folder.join(DATABASE_FILE), data.join(DATABASE_FILE)));
    for (from, to) in moves {
        fs::rename(&from, &to).map_err(OrchestratorError::io(format!("writing {}", to.display())))?;
    }
    fs::remove_dir_all(unpack_folder)
        .map_err(OrchestratorError::io(format!("removing {}", unpack_folder.display())))
}
