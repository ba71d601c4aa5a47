//! Zips made from all kinds of workspaces, including hostile ones.

use std::collections::HashSet;

use super::manifest::{MAX_LEFT_OUT, MAX_LISTED_NAME_BYTES, MAX_NAME_BYTES};
use super::*;

fn about() -> ZipMetadata {
    ZipMetadata { job: "job".into(), source: "workspace", provenance: Provenance::default() }
}

impl TarSource for &[u8] {
    fn finish(self) -> io::Result<Vec<String>> {
        Ok(vec!["pipe".into()])
    }
}

fn tar_of(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    build(&mut builder);
    builder.into_inner().unwrap()
}

fn add(builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) {
    add_raw(builder, name.as_bytes(), content);
}

fn add_raw(builder: &mut tar::Builder<Vec<u8>>, name: &[u8], content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
    header.set_size(content.len() as u64);
    header.set_mode(0o640);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

#[test]
fn files_arrive_with_their_hash_in_the_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    let tar = tar_of(|builder| add(builder, "a/b.txt", b"hello"));
    let artifact = zip_from_tar(tar.as_slice(), &target, &about()).unwrap();
    assert_eq!(artifact.files, 1);
    let mut zip = zip::ZipArchive::new(File::open(&target).unwrap()).unwrap();
    let mut text = String::new();
    zip.by_name("a/b.txt").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
    let manifest = manifest_of(&target);
    assert_eq!(manifest["left_out"], serde_json::json!([{"path": "pipe", "reason": "not_packed"}]));
    assert_eq!(manifest["files"][0]["size"], 5);
    assert_eq!(
        manifest["files"][0]["sha256"],
        "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    );
}

#[test]
fn own_folder_is_not_in_the_zip_and_what_it_records_is_kept_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    // From an attempt to collect a workspace that was lost afterwards.
    std::fs::write(folder.path().join("agent-deno.ipynb"), "stale").unwrap();
    let tar = tar_of(|builder| {
        add(builder, ".caisson/agent.ipynb", b"a notebook");
        add(builder, ".caisson/desktop.apng", b"a recording");
        add(builder, ".caisson/memory.json", b"a copy for the agent");
        add(builder, ".caisson/output.zip", b"a zip?");
        add(builder, ".caisson/manifest.json", b"a manifest?");
        add(builder, ".caisson/sub/agent.ipynb", b"x");
        add(builder, ".caisson-mine", b"not below our folder");
        add(builder, "agent.ipynb", b"of the project");
    });
    assert_eq!(zip_from_tar(tar.as_slice(), &target, &about()).unwrap().files, 2);
    let mut zip = zip::ZipArchive::new(File::open(&target).unwrap()).unwrap();
    let names: Vec<_> = zip.file_names().map(|name| name.unwrap().to_string()).collect();
    assert_eq!(names, [".caisson-mine", "agent.ipynb"]);
    let mut text = String::new();
    zip.by_name("agent.ipynb").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "of the project");
    let entries = std::fs::read_dir(folder.path()).unwrap();
    let mut beside: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    beside.sort();
    assert_eq!(beside, ["agent.ipynb", "desktop.apng", MANIFEST, "output.zip"]);
    assert_eq!(std::fs::read_to_string(folder.path().join("agent.ipynb")).unwrap(), "a notebook");
    let manifest = manifest_of(&target);
    let left_out: Vec<&str> = manifest["left_out"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["path"].as_str().unwrap())
        .collect();
    let unexpected = [".caisson/output.zip", ".caisson/manifest.json", ".caisson/sub/agent.ipynb"];
    assert_eq!(left_out[..3], unexpected);
    assert_eq!(manifest["left_out"][0]["reason"], "caisson_folder");
}

#[test]
fn job_cannot_fill_its_folder_with_files_from_the_own_folder() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    let tar = tar_of(|builder| {
        for number in 0..100 {
            add(builder, &format!(".caisson/agent-{number}.ipynb"), b"x");
        }
    });
    zip_from_tar(tar.as_slice(), &target, &about()).unwrap();
    // Besides the zip and its manifest.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 64 + 2);
    assert_eq!(manifest_of(&target)["left_out"].as_array().unwrap().len(), 100 - 64 + 1);
}

#[test]
fn tiny_files_are_stored_and_all_others_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    let large = "a line\n".repeat(1000);
    let tar = tar_of(|builder| {
        add(builder, "tiny", b"hello");
        add(builder, "almost", &[b'a'; 255]);
        add(builder, "just", &[b'a'; 256]);
        add(builder, "large", large.as_bytes());
    });
    zip_from_tar(tar.as_slice(), &target, &about()).unwrap();
    let mut zip = zip::ZipArchive::new(File::open(&target).unwrap()).unwrap();
    let mut method = |name| zip.by_name(name).unwrap().compression();
    assert_eq!(["tiny", "almost"].map(&mut method), [CompressionMethod::Stored; 2]);
    assert_eq!(["just", "large"].map(&mut method), [CompressionMethod::Deflated; 2]);
    let mut packed = zip.by_name("large").unwrap();
    assert!(packed.compressed_size() < 200, "{} bytes", packed.compressed_size());
    let mut text = String::new();
    packed.read_to_string(&mut text).unwrap();
    assert_eq!(text, large);
}

#[test]
fn files_with_the_same_redacted_name_are_both_kept() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    let tar = tar_of(|builder| {
        add(builder, "a/*********", b"one");
        add(builder, "a/*********", b"two");
    });
    assert_eq!(zip_from_tar(tar.as_slice(), &target, &about()).unwrap().files, 2);
    let mut zip = zip::ZipArchive::new(File::open(&target).unwrap()).unwrap();
    let mut text = String::new();
    zip.by_name("a/*********-2").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "two");
}

#[test]
fn files_with_names_that_are_not_utf_8_are_both_kept() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    let tar = tar_of(|builder| {
        add_raw(builder, b"\xff", b"one");
        add_raw(builder, b"\xfe", b"two");
    });
    assert_eq!(zip_from_tar(tar.as_slice(), &target, &about()).unwrap().files, 2);
    let mut zip = zip::ZipArchive::new(File::open(&target).unwrap()).unwrap();
    let mut text = String::new();
    zip.by_name("\u{fffd}-2").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "two");
}

#[test]
fn names_that_escape_the_folder_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    let tar = tar_of(|builder| {
        add(builder, "../evil", b"x");
        add(builder, "/etc/evil", b"x");
        add(builder, "good/../../evil", b"x");
        add(builder, "good", b"x");
    });
    assert_eq!(zip_from_tar(tar.as_slice(), &target, &about()).unwrap().files, 1);
}

fn add_long(builder: &mut tar::Builder<Vec<u8>>, name: &str) {
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    builder.append_data(&mut header, name, io::empty()).unwrap();
}

fn manifest_of(zip: &Path) -> serde_json::Value {
    serde_json::from_reader(File::open(zip.with_file_name(MANIFEST)).unwrap()).unwrap()
}

#[test]
fn long_names_and_targets_of_both_kinds_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    let (gnu, pax) = ("g/".repeat(100) + "file", "p/".repeat(100) + "file");
    let tar = tar_of(|builder| {
        add_long(builder, &gnu);
        builder.append_pax_extensions([("path", pax.as_bytes())]).unwrap();
        add(builder, "short", b"x");
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "link", &gnu).unwrap();
    });
    assert_eq!(zip_from_tar(tar.as_slice(), &target, &about()).unwrap().files, 2);
    let manifest = manifest_of(&target);
    assert_eq!((&manifest["files"][0]["path"], &manifest["files"][1]["path"]), (&gnu.into(), &pax.into()));
    assert_eq!(manifest["links"][0]["target"], "g/".repeat(100) + "file");
}

#[test]
fn overlong_names_are_left_out_and_listed_shortened() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    let tar = tar_of(|builder| {
        for number in 0..1100 {
            add_long(builder, &format!("{number}/{}", "ä/".repeat(2000)));
        }
        add(builder, "good", b"x");
    });
    assert_eq!(zip_from_tar(tar.as_slice(), &target, &about()).unwrap().files, 1);
    let left_out = manifest_of(&target)["left_out"].as_array().unwrap().clone();
    assert_eq!(left_out.len(), MAX_LEFT_OUT);
    for name in &left_out {
        assert_eq!(name["reason"], "name_too_long");
        let name = name["path"].as_str().unwrap();
        assert!(name.len() <= MAX_LISTED_NAME_BYTES + 3 && name.ends_with("..."), "{name}");
    }
}

#[test]
fn names_that_exceed_the_memory_limit_fail_the_archive() {
    let mut manifest = Manifest {
        job: String::new(),
        files: Vec::new(),
        links: Vec::new(),
        left_out: Vec::new(),
        provenance: Vec::new(),
        covered: HashSet::new(),
        name_bytes: MAX_NAME_BYTES - 2 * 1024 - 5,
    };
    let folder = tempfile::tempdir().unwrap();
    let mut zip = ZipWriter::new(BufWriter::new(File::create(folder.path().join("zip")).unwrap()));
    let tar = tar_of(|builder| {
        add(builder, "short", b"x");
        add_long(builder, &"d/".repeat(1025));
    });
    let mut archive = Archive::new(tar.as_slice());
    let mut own = OwnFiles::beside(&folder.path().join("zip"));
    let mut add =
        |entry| add_entry(&mut zip, &mut manifest, &mut own, entry, PaxHeader::default(), &mut [0; 512]);
    let added: Vec<io::Result<()>> = archive.entries().unwrap().map(|entry| add(entry.unwrap())).collect();
    assert!(added[0].is_ok());
    let error = added[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("names of the workspace take more than 64 MiB"), "{error}");
}

#[test]
fn escaping_links_are_left_out_and_listed_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    let links = [
        ("bin/python", "/usr/bin/python3"),
        ("out", "d/../.."),
        ("up", "d/back/.."),
        ("d/back", ".."),
        ("in", "d/a"),
    ];
    let tar = tar_of(|builder| {
        for (name, leads_to) in links {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(EntryType::Symlink);
            header.set_size(0);
            builder.append_link(&mut header, name, leads_to).unwrap();
        }
        add(builder, "d/a", b"x");
    });
    zip_from_tar(tar.as_slice(), &target, &about()).unwrap();
    let manifest = manifest_of(&target);
    assert_eq!(
        manifest["left_out"].as_array().unwrap()[1..],
        [
            serde_json::json!({"path": "bin/python", "reason": "absolute_link", "target": "/usr/bin/python3"}),
            serde_json::json!({"path": "out", "reason": "link_leads_out", "target": "d/../.."}),
            serde_json::json!({"path": "up", "reason": "link_leads_out", "target": "d/back/.."}),
        ]
    );
    let kept: Vec<&str> =
        manifest["links"].as_array().unwrap().iter().map(|link| link["path"].as_str().unwrap()).collect();
    assert_eq!(kept, ["d/back", "in"]);
    let zip = zip::ZipArchive::new(File::open(&target).unwrap()).unwrap();
    let names: Vec<_> = zip.file_names().map(|name| name.unwrap().to_string()).collect();
    assert_eq!(names, ["d/a", "d/back", "in"]);
}

#[test]
fn overlong_name_headers_are_refused_before_they_are_read() {
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader, EntryType::XGlobalHeader]
    {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("output.zip");
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(1 << 40);
        header.set_cksum();
        let error = zip_from_tar(header.as_bytes().as_slice(), &target, &about()).unwrap_err();
        assert!(error.to_string().contains("a header of 1099511627776 bytes"), "{kind:?}: {error}");
        assert!(!target.exists());
    }
}

#[test]
fn truncated_stream_leaves_no_zip() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("output.zip");
    let mut tar = tar_of(|builder| {
        add(builder, ".caisson/agent.ipynb", b"a notebook");
        add(builder, "a", &[7; 5000]);
    });
    tar.truncate(3000);
    assert!(zip_from_tar(tar.as_slice(), &target, &about()).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn full_disk_leaves_no_partial_files() {
    let folder = tempfile::tempdir().unwrap();
    let tar = tar_of(|builder| add(builder, "a", &[b'a'; 100_000]));
    let (zip, saved) = (folder.path().join("output.zip"), folder.path().join("checkpoint-1.tar.zst"));
    let partials = [zip.with_extension("zip.partial"), saved.with_extension("partial")];
    for partial in &partials {
        std::os::unix::fs::symlink("/dev/full", partial).unwrap();
    }
    let refused = [
        zip_from_tar(tar.as_slice(), &zip, &about()).unwrap_err(),
        save_tar(tar.as_slice(), &saved).unwrap_err(),
    ];
    assert_eq!(refused.map(|error| error.kind()), [io::ErrorKind::StorageFull; 2]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
