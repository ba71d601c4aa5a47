//! Builds the default image before the server is compiled: `./run` and `./test` run it beside the compiler.
//!
//!   build-image FOLDER [--archives FOLDER]   build the image `default` in a folder of images, or resume a build
//!   build-image --recipe                     print the digest of the recipe
//!
//! Users call `caisson image build`, which does the same with the server's configuration.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use image::{
    BuildEvent, BuildOptions, ImageError, ImageName, ImageStore, Recipe, RegistryAccess, Reuse, Stage,
};

/// How often the progress of a stage is printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--recipe"] => {
            println!("{}", Recipe::embedded().hash());
            ExitCode::SUCCESS
        }
        [folder] if !folder.starts_with('-') => exit_code(build(folder.into(), None)),
        [folder, "--archives", archives] if !folder.starts_with('-') => {
            exit_code(build(folder.into(), Some(archives.into())))
        }
        _ => {
            eprintln!("usage: build-image FOLDER [--archives FOLDER] | build-image --recipe");
            ExitCode::from(2)
        }
    }
}

fn exit_code(result: Result<(), ImageError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("building the image `default`: {error}");
            ExitCode::FAILURE
        }
    }
}

fn build(images: PathBuf, archives: Option<PathBuf>) -> Result<(), ImageError> {
    // Users of sandboxes must be able to read the image. The folder of images itself is closed to others.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let options = BuildOptions {
        name: ImageName::default_image(),
        recipe: Recipe::embedded(),
        base: None,
        access: RegistryAccess::from_environment(None, variable)?,
        archives,
        reuse: Reuse::Matching,
    };
    let mut printed = Instant::now();
    let report = image::build(&ImageStore::new(images), &options, &mut |event| {
        let is_progress = matches!(event, BuildEvent::Progress { .. });
        if !is_progress || printed.elapsed() >= PROGRESS_INTERVAL {
            printed = Instant::now();
            println!("image: {}", line(&event));
        }
    })?;
    let state = if report.is_up_to_date { "is up to date" } else { "built" };
    println!("image: {} {state} ({} MiB)", report.name, report.bytes >> 20);
    Ok(())
}

fn line(event: &BuildEvent) -> String {
    let place = |stage: &Stage| format!("[{}/{}] {}", stage.number(), Stage::ALL.len(), stage.name());
    match event {
        BuildEvent::Started { stage } => place(stage),
        BuildEvent::Cached { stage } => format!("{} already done", place(stage)),
        BuildEvent::Progress { stage, percent, doing } => {
            let percent = percent.map(|percent| format!("{percent}% ")).unwrap_or_default();
            // What package managers print may contain control characters.
            let doing = doing.replace(char::is_control, " ");
            format!("{} {percent}{doing}", place(stage))
        }
        BuildEvent::Done { stage, elapsed } => format!("{} done in {} s", place(stage), elapsed.as_secs()),
        BuildEvent::Note { text } => text.replace(char::is_control, " "),
    }
}
