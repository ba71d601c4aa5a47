//! `caisson image`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use image::{BuildOptions, HostAccess, ImageName, ImageStore, Recipe, Reuse, StoredImage};
use sandbox::{Check, CheckState};
use serde_json::{Value, json};

use super::image_progress::Progress;
use crate::cli::{HostArguments, OutputArguments};
use crate::config::{self, Config};
use crate::table::{Cell, Table};

/// The state of an image whose recipe has changed since the build.
const CHANGED: &str = "recipe has changed";

/// `caisson image`
#[derive(Debug, Args)]
#[command(after_help = "\
An image is the root file system of sandboxes. A job names it: \"image\": \"default\", \"host\", or another name.

Examples:
  caisson image build                             the agent's computer, as `default`; goes on where it was
  caisson image list
  caisson image import ./alpine.tar.gz --name alpine
  caisson image export default --oci ./default-oci
  caisson image rm alpine")]
pub(crate) struct ImageArguments {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    host: HostArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// What to do with images.
#[derive(Debug, Subcommand)]
enum Action {
    /// Builds the agent's computer, or goes on with a build that was interrupted.
    #[command(after_help = "\
Needs mmdebstrap. Mirrors, proxies, certificates and settings of apt, pip and npm are those of
this host; nothing of them stays in the image.

Examples:
  caisson image build
  caisson image build --mirror http://mirror.example/debian
  caisson image build --recipe ./my-recipe --name mine")]
    Build(BuildArguments),
    /// Lists images.
    #[command(after_help = "Examples:\n  caisson image list\n  caisson image list --json")]
    List,
    /// Removes images that no sandbox uses, and what an interrupted build or import has left of them.
    #[command(after_help = "Examples:\n  caisson image rm alpine\n  caisson image rm alpine mine --json")]
    Rm {
        /// The images.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<ImageName>,
    },
    /// Makes an image of a root file system: a directory, a tar archive, an OCI layout, or what `docker save` wrote.
    #[command(after_help = super::image_forms::IMPORT_HELP)]
    Import(super::image_forms::ImportArguments),
    /// Writes an image in another form.
    #[command(after_help = super::image_forms::EXPORT_HELP)]
    Export(super::image_forms::ExportArguments),
}

/// `caisson image build`
#[derive(Debug, Args)]
struct BuildArguments {
    /// Name of the image.
    #[arg(long, default_value = "default")]
    name: ImageName,
    /// A folder with another recipe, of the same form as `image/` in the sources.
    #[arg(long, value_name = "FOLDER")]
    recipe: Option<PathBuf>,
    /// An image to build on, instead of the least Debian.
    #[arg(long, value_name = "IMAGE")]
    base: Option<ImageName>,
    /// A mirror of Debian; without it CAISSON_MIRROR, or what this host uses.
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
    /// A folder that keeps fetched Debian packages for further builds.
    #[arg(long, value_name = "FOLDER")]
    archives: Option<PathBuf>,
    /// Makes everything anew, whatever is there.
    #[arg(long)]
    fresh: bool,
}

pub(crate) fn run(arguments: ImageArguments) -> Result<ExitCode> {
    let ImageArguments { action, host, output } = arguments;
    match action {
        Action::Build(arguments) => build(arguments, &host, output),
        Action::List => list(&host, output),
        Action::Rm { names } => remove(&names, &store(&host)?, output),
        Action::Import(arguments) => super::image_forms::import(&arguments, &host, output),
        Action::Export(arguments) => super::image_forms::export(&arguments, &host, output),
    }
}

/// Removes images one by one. If one is refused, those before it are already gone and are reported.
fn remove(names: &[ImageName], store: &ImageStore, output: OutputArguments) -> Result<ExitCode> {
    let mut removed = Vec::new();
    let ended = names.iter().try_for_each(|name| {
        store.remove(name)?;
        removed.push(name);
        if output.json { Ok(()) } else { super::print(&format!("removed {name}\n")) }
    });
    if output.json {
        super::print_json(&json!({ "removed": removed }))?;
    }
    ended.map(|()| ExitCode::SUCCESS)
}

/// The configured image store.
pub(super) fn store(host: &HostArguments) -> Result<ImageStore> {
    let config = Config::load(host, &[], false)?;
    // Sandboxes run as their own users, which must be able to read the image. The folder itself denies access to
    // others.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(ImageStore::new(config.images))
}

fn build(arguments: BuildArguments, host: &HostArguments, output: OutputArguments) -> Result<ExitCode> {
    let store = store(host)?;
    let recipe = match &arguments.recipe {
        None => Recipe::embedded(),
        Some(folder) => Recipe::read(folder)?,
    };
    let options = BuildOptions {
        name: arguments.name,
        recipe,
        base: arguments.base,
        access: HostAccess::from_environment(arguments.mirror, config::variable)?,
        archives: arguments
            .archives
            .map(std::path::absolute)
            .transpose()
            .context("finding the folder of packages")?,
        reuse: if arguments.fresh { Reuse::Nothing } else { Reuse::WhatFits },
    };
    let json = output.json;
    let mut progress = Progress::new(json);
    let report = image::build(&store, &options, &mut |event| progress.show(&event));
    progress.end();
    let report = report.with_context(|| format!("building the image `{}`", options.name))?;
    if json {
        // One line, like an event.
        super::print(&format!("{}\n", json!({"event": "built", "report": report})))?;
        return Ok(ExitCode::SUCCESS);
    }
    if report.is_up_to_date {
        super::print(&format!("{} is up to date ({})\n", report.name, size_text(report.bytes)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !report.differs_from_lock.is_empty() {
        let count = report.differs_from_lock.len();
        super::say(&format!("{count} Debian packages differ from those of image/debian.lock:"));
        for line in report.differs_from_lock.iter().take(10) {
            super::say(&format!("  {line}"));
        }
        if count > 10 {
            super::say(&format!("  and {} more", count - 10));
        }
    }
    super::print(&format!("built {} ({})\n", report.name, size_text(report.bytes)))?;
    Ok(ExitCode::SUCCESS)
}

fn list(host: &HostArguments, output: OutputArguments) -> Result<ExitCode> {
    let store = store(host)?;
    let images = store.list()?;
    let unfinished = store.unfinished();
    let recipe = Recipe::embedded().hash();
    if output.json {
        let mut listed = documents(&images, &recipe);
        listed["unfinished"] = json!(unfinished);
        super::print_json(&listed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["NAME", "SIZE", "MADE", "STATE", "SYSTEM", "FROM"]);
    for image in &images {
        let record = image.record.as_ref();
        let text = |value: Option<&str>| value.unwrap_or("-").to_owned();
        let state = state_of(image, &recipe);
        table.add(vec![
            image.name.as_str().into(),
            record.map_or_else(|| "-".into(), |record| size_text(record.bytes)).into(),
            text(record.map(|record| record.made_at.as_str())).replace('T', " ").replace('Z', "").into(),
            Cell::coloured(state, if state == CHANGED { "33" } else { "32" }),
            text(record.map(|record| record.system.as_str())).into(),
            text(record.map(|record| record.source.as_str())).into(),
        ]);
    }
    table.add(["host", "-", "-", "ready", "this machine's own programs", "-"].map(Cell::from).into());
    super::print(&table.show())?;
    for work in &unfinished {
        let (name, size) = (&work.name, size_text(work.bytes));
        super::say(&if work.is_going_on {
            format!("\n`{name}` is being made ({size} so far)")
        } else {
            format!(
                "\n`{name}` was left unfinished ({size}). Build it again to go on, or: caisson image rm {name}"
            )
        });
    }
    if !images.iter().any(|image| image.name == ImageName::default_image()) {
        super::say(
            "\nThere is no image `default` yet, so jobs run on `host`. Build it with: caisson image build",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The listing for the server's API.
pub(crate) fn listing(config: &Config) -> Result<Value> {
    Ok(documents(&ImageStore::new(&config.images).list()?, &Recipe::embedded().hash()))
}

fn documents(images: &[StoredImage], recipe: &str) -> Value {
    let images: Vec<Value> = images.iter().map(|image| document(image, recipe)).collect();
    json!({"recipe": recipe, "images": images})
}

/// The state of the default image, for `doctor`.
pub(super) fn check(config: &Config) -> Check {
    let image = ImageStore::new(&config.images).find(&ImageName::default_image());
    let (state, found) = match &image {
        None => {
            (CheckState::Weaker, "is not built; jobs use this machine's own programs (`host`)".to_owned())
        }
        Some(image) => {
            let state = state_of(image, &Recipe::embedded().hash());
            let size = image.record.as_ref().map(|record| format!(", {}", size_text(record.bytes)));
            let check = if state == CHANGED { CheckState::Weaker } else { CheckState::Good };
            (check, format!("{state}{}", size.unwrap_or_default()))
        }
    };
    let remedy = (state != CheckState::Good).then(|| "caisson image build".to_owned());
    Check { name: "default image".into(), state, found, remedy }
}

/// Whether an image matches its current recipe. Imported images and images with another recipe are just present.
fn state_of(image: &StoredImage, recipe: &str) -> &'static str {
    let built_from = image.record.as_ref().and_then(|record| record.recipe.as_deref());
    match built_from {
        Some(hash) if hash == recipe => "up to date",
        Some(_) if image.name == ImageName::default_image() => CHANGED,
        _ => "ready",
    }
}

fn document(image: &StoredImage, recipe: &str) -> Value {
    json!({
        "name": image.name,
        "root": image.root,
        "state": state_of(image, recipe),
        "record": image.record,
    })
}

/// A human-readable size.
pub(super) fn size_text(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    if mebibytes < 1024.0 { format!("{mebibytes:.1} MiB") } else { format!("{:.1} GiB", mebibytes / 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_one_unit() {
        assert_eq!([1 << 20, 1536 << 20].map(size_text), ["1.0 MiB", "1.5 GiB"]);
    }
}
