//! `caisson image`

mod formats;
mod progress;
mod store;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use image::{BuildOptions, ImageName, ImageStore, Recipe, RegistryAccess, Reuse};
use serde_json::json;

use self::formats::{EXPORT_HELP, ExportArguments, IMPORT_HELP, ImportArguments};
use self::progress::Progress;
use self::store::store;
use crate::arguments::{HostArguments, OutputArguments};
use crate::config::environment::variable;
use crate::host::images::{CHANGED, documents, state_of};
use crate::output::table::{Cell, Table};
use crate::output::{print, print_json, say, size_text};

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
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArguments),
    /// Writes an image in another form.
    #[command(after_help = EXPORT_HELP)]
    Export(ExportArguments),
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
        Action::Import(arguments) => formats::import(&arguments, &host, output),
        Action::Export(arguments) => formats::export(&arguments, &host, output),
    }
}

/// Removes images one by one. If one is refused, those before it are already gone and are reported.
fn remove(names: &[ImageName], store: &ImageStore, output: OutputArguments) -> Result<ExitCode> {
    let mut removed = Vec::new();
    let ended = names.iter().try_for_each(|name| {
        store.remove(name)?;
        removed.push(name);
        if output.json { Ok(()) } else { print(&format!("removed {name}\n")) }
    });
    if output.json {
        print_json(&json!({ "removed": removed }))?;
    }
    ended.map(|()| ExitCode::SUCCESS)
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
        access: RegistryAccess::from_environment(arguments.mirror, variable)?,
        archives: arguments
            .archives
            .map(std::path::absolute)
            .transpose()
            .context("finding the folder of packages")?,
        reuse: if arguments.fresh { Reuse::Nothing } else { Reuse::Matching },
    };
    let json = output.json;
    let mut progress = Progress::new(json);
    let report = image::build(&store, &options, &mut |event| progress.show(&event));
    progress.end();
    let report = report.with_context(|| format!("building the image `{}`", options.name))?;
    if json {
        // One line, like an event.
        print(&format!("{}\n", json!({"event": "built", "report": report})))?;
        return Ok(ExitCode::SUCCESS);
    }
    if report.is_up_to_date {
        print(&format!("{} is up to date ({})\n", report.name, size_text(report.bytes)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !report.differs_from_lock.is_empty() {
        let count = report.differs_from_lock.len();
        say(&format!("{count} Debian packages differ from those of image/debian.lock:"));
        for line in report.differs_from_lock.iter().take(10) {
            say(&format!("  {line}"));
        }
        if count > 10 {
            say(&format!("  and {} more", count - 10));
        }
    }
    print(&format!("built {} ({})\n", report.name, size_text(report.bytes)))?;
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
        print_json(&listed)?;
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
    print(&table.show())?;
    for work in &unfinished {
        let (name, size) = (&work.name, size_text(work.bytes));
        say(&if work.is_going_on {
            format!("\n`{name}` is being made ({size} so far)")
        } else {
            format!(
                "\n`{name}` was left unfinished ({size}). Build it again to go on, or: caisson image rm {name}"
            )
        });
    }
    if !images.iter().any(|image| image.name == ImageName::default_image()) {
        say("\nThere is no image `default` yet, so jobs run on `host`. Build it with: caisson image build");
    }
    Ok(ExitCode::SUCCESS)
}
