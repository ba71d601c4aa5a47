//! Builds an image stage by stage in a work folder, then moves it into place as a whole.
//!
//! The work folder records which stages were started and finished, so a failed build resumes at the stage that
//! failed. A lock prevents other builds of the same image.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::bootstrap::Bootstrap;
use crate::build_root::{self, BuildRoot, copy_tree, remove_tree};
use crate::error::ImageError;
use crate::progress::{BuildEvent, ProgressParser};
use crate::recipe::Recipe;
use crate::registry_access::RegistryAccess;
use crate::stage::Stage;
use crate::store::{ImageName, ImageStore, StoredImage, describe};

/// How many of the last output lines of a failed stage are shown.
const TAIL_LINES: usize = 12;
/// The search path inside.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, Clone)]
pub struct BuildOptions {
    pub name: ImageName,
    pub recipe: Recipe,
    /// The image to build on, instead of a minimal Debian.
    pub base: Option<ImageName>,
    pub access: RegistryAccess,
    /// A folder that keeps downloaded Debian packages for the next build; without it they are removed when the build
    /// has succeeded.
    pub archives: Option<PathBuf>,
    /// How to handle an existing image or an unfinished build.
    pub reuse: Reuse,
}

/// How to handle an existing image or an unfinished build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// Keep everything that matches the recipe.
    Matching,
    /// Rebuild everything.
    Nothing,
}

/// The result of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BuildReport {
    pub name: ImageName,
    /// Whether there was nothing to do.
    pub is_up_to_date: bool,
    /// The digest of the recipe.
    pub recipe: String,
    /// Size on disk.
    pub bytes: u64,
    /// Debian packages that differ from the lock file, one line each.
    pub differs_from_lock: Vec<String>,
}

/// Which stages were started and finished in the work folder.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    begun: Vec<(Stage, String)>,
    done: Vec<(Stage, String)>,
}

/// Builds an image unless it is up to date.
///
/// # Errors
/// The host lacks something, another build of this image is running, or a stage failed. After a failed stage, the
/// same call resumes at that stage.
pub fn build(
    store: &ImageStore,
    options: &BuildOptions,
    on_event: &mut dyn FnMut(BuildEvent),
) -> Result<BuildReport, ImageError> {
    let base = options.base.as_ref().map(|name| store.get(name)).transpose()?;
    let keys = options.recipe.stage_keys(&base_identity(base.as_ref()));
    let recipe = keys.last().map(|(_, key)| key.clone()).unwrap_or_default();
    let there = store.find(&options.name);
    let record = there.as_ref().and_then(|image| image.record.as_ref());
    if let Some(record) = record.filter(|record| record.recipe.as_ref() == Some(&recipe))
        && options.reuse == Reuse::Matching
    {
        let bytes = record.bytes;
        let name = options.name.clone();
        return Ok(BuildReport { name, is_up_to_date: true, recipe, bytes, differs_from_lock: Vec::new() });
    }
    let (folder, _lock) = store.work_folder(&options.name)?;
    let mut work = Work::open(folder, options, keys, base)?;
    work.begin(there.as_ref(), on_event)?;
    work.run_stages(on_event)?;
    work.chown_to_user()?;
    let root = work.root();
    let packages = build_root::read_in_root(&root, "usr/share/caisson/packages.txt").unwrap_or_default();
    let mut record = describe(&root, "recipe".to_owned())?;
    record.recipe = Some(recipe.clone());
    record.stages.clone_from(&work.keys);
    store.install(&options.name, &root, &record)?;
    let folder = work.folder.clone();
    drop(work);
    remove_tree(&folder)?;
    let differs_from_lock = options.recipe.compare_with_lock(&packages);
    Ok(BuildReport {
        name: options.name.clone(),
        is_up_to_date: false,
        recipe,
        bytes: record.bytes,
        differs_from_lock,
    })
}

/// Changes whenever the base image changes.
fn base_identity(base: Option<&StoredImage>) -> String {
    let Some(base) = base else { return String::new() };
    let made = base.record.as_ref().map(|record| record.made_at.as_str()).unwrap_or_default();
    format!("{} {made}", base.name)
}

struct Work<'a> {
    folder: PathBuf,
    options: &'a BuildOptions,
    keys: Vec<(Stage, String)>,
    base: Option<StoredImage>,
    archives: PathBuf,
    state: State,
    variables: std::collections::BTreeMap<String, String>,
}

impl<'a> Work<'a> {
    fn open(
        folder: PathBuf,
        options: &'a BuildOptions,
        keys: Vec<(Stage, String)>,
        base: Option<StoredImage>,
    ) -> Result<Self, ImageError> {
        let state = fs::read(folder.join("state.json")).ok();
        let state = state.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let (recipe, access) = (folder.join("recipe"), folder.join("access"));
        for old in [&recipe, &access] {
            remove_tree(old)?;
        }
        options.recipe.write_to(&recipe).map_err(ImageError::at("writing the recipe to", &recipe))?;
        let archives = options.archives.clone().unwrap_or_else(|| folder.join("archives"));
        fs::create_dir_all(&archives).map_err(ImageError::at("making", &archives))?;
        let variables = options.access.prepare(&access).map_err(ImageError::at("preparing", &access))?;
        Ok(Self { folder, options, keys, base, archives, state, variables })
    }

    fn root(&self) -> PathBuf {
        self.folder.join("rootfs")
    }

    /// Determines which stages can be kept, and removes the rest.
    fn begin(
        &mut self,
        there: Option<&StoredImage>,
        on_event: &mut dyn FnMut(BuildEvent),
    ) -> Result<(), ImageError> {
        let reuse = self.options.reuse == Reuse::Matching;
        if !(reuse && self.root().is_dir() && is_clean(&self.keys, &self.state.begun)) {
            remove_tree(&self.root())?;
            self.state = State::default();
            if reuse
                && let Some((image, done)) =
                    there.and_then(|image| Some((image, self.reusable_stages_of(image)?)))
            {
                on_event(BuildEvent::Note { text: format!("on the image `{}` that is there", image.name) });
                copy_tree(&image.root, &self.root())?;
                self.state = State { begun: done.clone(), done };
            }
        }
        let kept = self.kept();
        self.state.done.truncate(kept);
        self.save()
    }

    /// The matching stages of a finished image, if all remaining stages can run on top of it.
    fn reusable_stages_of(&self, image: &StoredImage) -> Option<Vec<(Stage, String)>> {
        let stages = &image.record.as_ref()?.stages;
        let kept = self.keys.iter().zip(stages).take_while(|(key, done)| key == done).count();
        let rest = self.keys.get(kept..)?;
        (kept > 0 && rest.iter().all(|(stage, _)| stage.is_repeatable())).then(|| self.keys[..kept].to_vec())
    }

    /// The number of finished stages that can be kept.
    fn kept(&self) -> usize {
        self.keys.iter().zip(&self.state.done).take_while(|(key, done)| key == done).count()
    }

    fn run_stages(&mut self, on_event: &mut dyn FnMut(BuildEvent)) -> Result<(), ImageError> {
        let kept = self.kept();
        let _ = fs::remove_file(self.log());
        for (index, (stage, key)) in self.keys.clone().into_iter().enumerate() {
            if index < kept {
                on_event(BuildEvent::Cached { stage });
                continue;
            }
            let started = Instant::now();
            on_event(BuildEvent::Started { stage });
            self.state.begun.retain(|(begun, _)| *begun != stage);
            self.state.begun.push((stage, key.clone()));
            self.save()?;
            if stage == Stage::Base { self.make_base(on_event) } else { self.run_inside(stage, on_event) }?;
            self.state.done.push((stage, key));
            self.save()?;
            on_event(BuildEvent::Done { stage, elapsed: round(started.elapsed()) });
        }
        Ok(())
    }

    fn make_base(&self, on_event: &mut dyn FnMut(BuildEvent)) -> Result<(), ImageError> {
        let root = self.root();
        remove_tree(&root)?;
        if let Some(base) = &self.base {
            return copy_tree(&base.root, &root);
        }
        let partial = self.folder.join("base");
        remove_tree(&partial)?;
        let mut bootstrap = Bootstrap::new(&partial, &self.options.access, &self.folder.join("access"))?;
        self.run(&mut bootstrap.command, Stage::Base, on_event)?;
        bootstrap.finish(&partial)?;
        fs::rename(&partial, &root).map_err(ImageError::at("moving", &partial))
    }

    fn run_inside(&self, stage: Stage, on_event: &mut dyn FnMut(BuildEvent)) -> Result<(), ImageError> {
        let build_root = BuildRoot {
            root: &self.root(),
            recipe: &self.folder.join("recipe"),
            access: &self.folder.join("access"),
            archives: &self.archives,
        };
        let mut command =
            build_root.command(&format!("/run/caisson-build/recipe/stages/{}", stage.name()))?;
        // The child's search path must also find programs on the host; the host uses the same directories.
        command.env_clear().env("PATH", PATH).env("HOME", "/root").env("LANG", "C.UTF-8").env("TERM", "dumb");
        command.envs(&self.variables);
        self.run(&mut command, stage, on_event)
    }

    /// Runs a command, logs its output, and reports progress.
    fn run(
        &self,
        command: &mut Command,
        stage: Stage,
        on_event: &mut dyn FnMut(BuildEvent),
    ) -> Result<(), ImageError> {
        let path = self.log();
        let mut log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(ImageError::at("opening", &path))?;
        let _ = writeln!(log, "== {}", stage.name());
        let program = PathBuf::from(command.get_program());
        let (reader, writer) = io::pipe().map_err(ImageError::at("making a pipe for", &program))?;
        let both = writer.try_clone().map_err(ImageError::at("making a pipe for", &program))?;
        let mut child =
            command.stdout(writer).stderr(both).spawn().map_err(ImageError::at("starting", &program))?;
        // `command` holds this process's write ends of the pipe; drop them so that the reader sees end-of-file when
        // the child exits.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut tail = std::collections::VecDeque::new();
        let mut progress = ProgressParser::new(stage);
        let mut lines = BufReader::new(reader);
        let mut bytes = Vec::new();
        while matches!(lines.read_until(b'\n', &mut bytes), Ok(1..)) {
            let _ = log.write_all(&bytes);
            let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            bytes.clear();
            if let Some(event) = progress.take(&line) {
                on_event(event);
            }
            tail.push_back(line);
            if tail.len() > TAIL_LINES {
                tail.pop_front();
            }
        }
        let status = child.wait().map_err(ImageError::at("waiting for", &program))?;
        if status.success() {
            return Ok(());
        }
        let tail: Vec<String> = tail.iter().map(|line| format!("  {line}")).collect();
        Err(ImageError::Stage {
            stage,
            why: status.to_string(),
            tail: tail.join("\n"),
            log: path.display().to_string(),
        })
    }

    /// Makes this user the owner of all files, because the sandboxes of an unprivileged user have only one user.
    /// Their launcher gives the home directory to the agent.
    fn chown_to_user(&self) -> Result<(), ImageError> {
        if geteuid().is_root() {
            return Ok(());
        }
        let root = self.root();
        for (program, arguments) in [("chown", ["-hR", "0:0"]), ("chmod", ["-R", "u+rwX"])] {
            let mut command = build_root::with_all_ids(program)?;
            command.args(arguments).arg("--").arg(&root);
            build_root::run(command, "giving files to this user in", &root)?;
        }
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.folder.join("build.log")
    }

    fn save(&self) -> Result<(), ImageError> {
        let path = self.folder.join("state.json");
        let partial = self.folder.join("state.json.partial");
        let text = serde_json::to_vec(&self.state).unwrap_or_default();
        fs::write(&partial, text)
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(ImageError::at("writing", &path))
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        // The folder may contain credentials for registries.
        let access: &Path = &self.folder.join("access");
        let _ = remove_tree(access);
    }
}

/// Whether every stage that was started either matches the recipe or can be repeated.
fn is_clean(keys: &[(Stage, String)], begun: &[(Stage, String)]) -> bool {
    begun.iter().all(|entry| keys.contains(entry) || entry.0.is_repeatable())
}

fn round(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
