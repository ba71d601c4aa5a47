//! `caisson image`

mod formats;
mod progress;
mod store;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use image::{BuildOptions, ImageName, ImageStore, Recipe, RegistryAccess, Reuse};
use serde_json::{Value, json};

use self::formats::{EXPORT_HELP, ExportArguments, IMPORT_HELP, ImportArguments};
use self::progress::Progress;
use self::store::store;
use crate::arguments::{HostArguments, OutputArguments, ServerArguments};
use crate::client::described::Described;
use crate::config::environment::variable;
use crate::host::images::{CHANGED, listing};
use crate::output::table::{Cell, Table};
use crate::output::{print, print_json, say, size_text, time_text, value_text};

/// `caisson image`
#[derive(Debug, Args)]
#[command(after_help = "\
An image is the root file system of a sandbox. A job selects it with \"image\": \"default\", \"host\", or another name.

Examples:
  caisson image build                             build `default`, the image of agents; resumes an interrupted build
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
    /// Build the default image, or resume an interrupted build.
    #[command(after_help = "\
Needs mmdebstrap. The build uses the mirrors, proxies, certificates and the apt, pip and npm settings of this host, and
leaves none of them in the image.

Examples:
  caisson image build
  caisson image build --mirror http://mirror.example/debian
  caisson image build --recipe ./my-recipe --name mine")]
    Build(BuildArguments),
    /// List the images of the server that answers, or else of the local data folder.
    #[command(after_help = "\
If a server answers at --url, CAISSON_URL or the configured address, its images are listed. Otherwise, and with --data,
those of the data folder are. The other actions change the data folder.

Examples:
  caisson image list
  caisson image list --data ./data --json")]
    List {
        #[command(flatten)]
        server: ServerArguments,
    },
    /// Remove unused images and leftovers of interrupted builds and imports.
    #[command(after_help = "Examples:\n  caisson image rm alpine\n  caisson image rm alpine mine --json")]
    Rm {
        /// Names of the images.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<ImageName>,
    },
    /// Import a directory, a tar archive, an OCI layout or the output of `docker save`.
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArguments),
    /// Export an image.
    #[command(after_help = EXPORT_HELP)]
    Export(ExportArguments),
}

/// `caisson image build`
#[derive(Debug, Args)]
struct BuildArguments {
    /// Name of the image.
    #[arg(long, default_value = "default")]
    name: ImageName,
    /// Recipe folder, with the layout of `image/` in the sources.
    #[arg(long, value_name = "FOLDER")]
    recipe: Option<PathBuf>,
    /// Base image to build on, instead of minimal Debian.
    #[arg(long, value_name = "IMAGE")]
    base: Option<ImageName>,
    /// Debian mirror [default: CAISSON_MIRROR, or the mirror of this host].
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
    /// Folder that caches Debian packages between builds.
    #[arg(long, value_name = "FOLDER")]
    archives: Option<PathBuf>,
    /// Rebuild everything, ignoring finished stages.
    #[arg(long)]
    fresh: bool,
}

pub(crate) fn run(arguments: ImageArguments) -> Result<ExitCode> {
    let ImageArguments { action, host, output } = arguments;
    match action {
        Action::Build(arguments) => build(arguments, &host, output),
        Action::List { server } => list(&server, &host, output),
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
            .context("finding the package folder")?,
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

fn list(server: &ServerArguments, host: &HostArguments, output: OutputArguments) -> Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let described = runtime.block_on(Described::find(server, host, "/v1/images"))?;
    described.announce();
    let listed = match described {
        Described::Server { answer, .. } => answer,
        Described::Folder { config, .. } => listing(&config)?,
    };
    if output.json {
        print_json(&listed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let entries = |name: &str| listed[name].as_array().cloned().unwrap_or_default();
    print(&table(&entries("images")).show())?;
    for work in entries("unfinished") {
        let (name, size) = (value_text(&work["name"]), size_text(work["bytes"].as_u64().unwrap_or(0)));
        say(&if work["is_going_on"] == true {
            format!("\n`{name}` is being built ({size} so far)")
        } else {
            format!(
                "\n`{name}` is unfinished ({size}). Build it again to resume, or remove it: caisson image rm {name}"
            )
        });
    }
    let default = ImageName::default_image();
    if !entries("images").iter().any(|image| image["name"] == default.as_str()) {
        say(
            "\nThe image `default` is not built yet, so jobs run on `host`. Build it with: caisson image build",
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn table(images: &[Value]) -> Table {
    let mut table = Table::new(&["NAME", "SIZE", "MADE", "STATE", "SYSTEM", "FROM"]);
    for image in images {
        let record = &image["record"];
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let state = text(&image["state"]);
        let colour = if state == CHANGED { "33" } else { "32" };
        let size = record["bytes"].as_u64().map_or_else(|| "-".to_owned(), size_text);
        let made = if record["made_at"].is_null() { "-".to_owned() } else { time_text(&record["made_at"]) };
        table.add(vec![
            text(&image["name"]).into(),
            size.into(),
            made.into(),
            Cell::coloured(&state, colour),
            text(&record["system"]).into(),
            text(&record["source"]).into(),
        ]);
    }
    table.add(["host", "-", "-", "ready", "programs of this machine", "-"].map(Cell::from).into());
    table
}
