//! `caisson image import` and `caisson image export`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use image::{ExportFormat, IfExists, ImageName, ImportOptions};
use serde_json::json;

use super::store::store;
use crate::arguments::{HostArguments, OutputArguments, parse_mebibytes};
use crate::output::{print, print_json, say, size_text};

/// Larger than any current image, smaller than most disks.
const MAX_MEBIBYTES: u64 = 64 << 10;

pub(super) const IMPORT_HELP: &str = "\
Archives may be compressed with gzip or zstd. Paths that leave the image are refused. Device files, setuid bits and ids
that do not exist in a sandbox are dropped. `docker export CONTAINER | caisson image import - --name NAME` also works.

Examples:
  caisson image import ./rootfs --name mine
  caisson image import alpine-minirootfs.tar.gz --name alpine
  caisson image import ./oci-layout --name app
  caisson image import - --name app <saved.tar";

pub(super) const EXPORT_HELP: &str = "\
Examples:
  caisson image export default --tar default.tar
  caisson image export default --tar - | docker import - caisson/agent
  caisson image export default --oci ./default-oci
  caisson image export default --ext4 default.ext4";

/// `caisson image import`
#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    /// Directory or archive; `-` reads standard input.
    #[arg(value_name = "DIRECTORY|ARCHIVE|LAYOUT")]
    source: PathBuf,
    /// Name of the image [default: the name of the source].
    #[arg(long)]
    name: Option<ImageName>,
    /// Replace an existing image of the same name.
    #[arg(long)]
    replace: bool,
    /// Maximum size on disk, such as 10g.
    #[arg(long, value_name = "SIZE", value_parser = parse_mebibytes, default_value = "64g")]
    max_size: u64,
}

/// `caisson image export`
#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    /// Name of the image.
    name: ImageName,
    #[command(flatten)]
    form: FormArguments,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct FormArguments {
    /// Write a tar archive; `-` writes to standard output.
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
    /// Write an OCI layout into this directory.
    #[arg(long, value_name = "FOLDER")]
    oci: Option<PathBuf>,
    /// Write an ext4 file system image.
    #[arg(long, value_name = "FILE")]
    ext4: Option<PathBuf>,
}

pub(crate) fn import(
    arguments: &ImportArguments,
    host: &HostArguments,
    output: OutputArguments,
) -> Result<ExitCode> {
    let store = store(host)?;
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => name_of(&arguments.source)?,
    };
    let options = ImportOptions {
        name,
        source: arguments.source.clone(),
        existing: if arguments.replace { IfExists::Replace } else { IfExists::Keep },
        most_bytes: arguments.max_size.min(MAX_MEBIBYTES) << 20,
    };
    let report = image::import(&store, &options)?;
    if output.json {
        print_json(&json!(report))?;
        return Ok(ExitCode::SUCCESS);
    }
    for warning in &report.warnings {
        say(&format!("note: {warning}"));
    }
    let (name, system) = (&report.name, &report.system);
    let size = size_text(report.unpacked.bytes);
    print(&format!("imported {name} ({system}, {} entries, {size})\n", report.unpacked.entries))?;
    Ok(ExitCode::SUCCESS)
}

/// The name of a file or directory without its archive extensions.
fn name_of(source: &Path) -> Result<ImageName> {
    let Some(name) = source.file_name().filter(|_| source != Path::new("-")) else {
        bail!("the source has no name; choose one with --name");
    };
    let name = name.to_string_lossy().to_lowercase();
    let endings = [".gz", ".zst", ".tgz", ".tar", ".oci"];
    let mut rest = name.as_str();
    while let Some(shorter) = endings.iter().find_map(|ending| rest.strip_suffix(ending)) {
        rest = shorter;
    }
    rest.parse().with_context(|| "the name of the source is not a valid image name; choose one with --name")
}

pub(crate) fn export(
    arguments: &ExportArguments,
    host: &HostArguments,
    output: OutputArguments,
) -> Result<ExitCode> {
    let FormArguments { tar, oci, ext4 } = &arguments.form;
    let json = output.json;
    if json && tar.as_deref() == Some(Path::new("-")) {
        bail!("--json and --tar - both write to standard output; choose a file for the archive");
    }
    let image = store(host)?.get(&arguments.name)?;
    let formats = [(ExportFormat::Tar, tar), (ExportFormat::Oci, oci), (ExportFormat::Ext4, ext4)];
    for (format, target) in
        formats.into_iter().filter_map(|(format, target)| Some((format, target.as_ref()?)))
    {
        image::export(&image, format, target)?;
        if json {
            print_json(&json!({ "name": arguments.name, "form": flag_of_format(format), "path": target }))?;
        } else if target != Path::new("-") {
            print(&format!("wrote {}\n", target.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The flag that selects a format.
fn flag_of_format(format: ExportFormat) -> &'static str {
    match format {
        ExportFormat::Tar => "tar",
        ExportFormat::Oci => "oci",
        ExportFormat::Ext4 => "ext4",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_name_is_derived_from_source() {
        let name = |text: &str| name_of(Path::new(text)).map(|name| name.to_string()).ok();
        assert_eq!(name("/x/Alpine-3.20.tar.gz").as_deref(), Some("alpine-3.20"));
        assert_eq!(name("./rootfs/").as_deref(), Some("rootfs"));
        assert_eq!([name("-"), name("host"), name("/")], [None, None, None]);
    }
}
