//! Embeds the web page that `./build-web` has bundled: a list of files, each also compressed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> io::Result<()> {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    for name in ["desktop.js", "desktop.css"] {
        require(&web.join("desktop/dist").join(name));
    }
    let dist = web.join("dist");
    require(&dist.join("index.html"));
    let mut files = Vec::new();
    collect(&dist, &dist, &mut files)?;
    files.sort();
    let mut list = String::from("pub(crate) const FILES: &[File] = &[\n");
    for (number, name) in files.iter().enumerate() {
        let path = dist.join(name);
        let compressed = out.join(format!("page-{number}.gz"));
        compress(&path, &compressed)?;
        println!("cargo::rerun-if-changed={}", path.display());
        let _ = writeln!(
            list,
            "    File {{ name: {name:?}, content: include_bytes!({path:?}), compressed: include_bytes!({compressed:?}) }},"
        );
    }
    list.push_str("];\n");
    fs::write(out.join("pages.rs"), list)
}

fn require(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
    if !path.is_file() {
        println!("cargo::error=the web page is not bundled yet; run ./build-web in the top folder first");
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<String>) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if let Ok(name) = path.strip_prefix(root) {
            files.push(name.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn compress(from: &Path, to: &Path) -> io::Result<()> {
    let mut encoder = GzEncoder::new(fs::File::create(to)?, Compression::best());
    encoder.write_all(&fs::read(from)?)?;
    encoder.finish().map(drop)
}
