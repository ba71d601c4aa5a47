//! Embeds the recipe (`image/` in the repository root) into the library, as a table of paths, modes and contents.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The entries of the recipe folder that go into an image.
const PARTS: [&str; 5] = ["packages.txt", "python", "node", "stages", "files"];

fn main() -> io::Result<()> {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let recipe = manifest.join("../../image").canonicalize()?;
    println!("cargo::rerun-if-changed={}", recipe.display());
    let mut table = String::from("&[\n");
    for part in PARTS {
        add(&recipe, Path::new(part), &mut table)?;
    }
    table += "]\n";
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("recipe_table.rs"), table)
}

fn add(recipe: &Path, path: &Path, table: &mut String) -> io::Result<()> {
    let full = recipe.join(path);
    let metadata = fs::symlink_metadata(&full)?;
    if metadata.is_dir() {
        let mut names: Vec<_> =
            fs::read_dir(&full)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
        names.sort();
        return names.iter().try_for_each(|name| add(recipe, &path.join(name), table));
    }
    let name = path.display().to_string();
    let content = if metadata.is_symlink() {
        format!("Content::Link({:?})", fs::read_link(&full)?.display().to_string())
    } else {
        // Git only stores whether a file is executable; the other mode bits come from the user's umask.
        let mode = if metadata.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
        format!(
            "Content::File {{ mode: {mode:#o}, bytes: include_bytes!({:?}) }}",
            full.display().to_string()
        )
    };
    writeln!(table, "    Entry {{ path: {name:?}, content: {content} }},").map_err(io::Error::other)
}
