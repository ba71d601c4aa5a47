//! `caisson image`: building, importing, exporting, listing, removing; and what it refuses.

use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::images::make_small_root;
use e2e::{Options, Server, shell};
use serde_json::json;
use tempfile::TempDir;

use crate::cli_command::{Outcome, command, finish};

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("caisson-e2e-image-").tempdir().unwrap();
        make_small_root(&folder.path().join("small"));
        Self { folder }
    }

    fn typed(&self, words: &[&str]) -> Outcome {
        self.run_cli_with_input(words, &[])
    }

    fn run_cli_with_input(&self, words: &[&str], variables: &[(&str, &str)]) -> Outcome {
        let mut command = command(self.folder.path(), &[&["image"], words].concat());
        for (name, value) in variables {
            command.env(name, value);
        }
        finish(command, "")
    }

    fn root(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join("data/images").join(name).join("rootfs")
    }

    /// Writes a recipe whose stages log that they ran; the stage `python` needs the network.
    fn write_recipe(&self) {
        let stages = self.folder.path().join("recipe/stages");
        fs::create_dir_all(&stages).unwrap();
        fs::write(self.folder.path().join("recipe/packages.txt"), "none\n").unwrap();
        for name in ["packages", "python", "node", "files", "finish"] {
            let fetch = if name == "python" {
                "test \"$http_proxy\" = http://127.0.0.1:8 || { echo fetching: connection refused; exit 7; }\n"
            } else {
                ""
            };
            // Everything of the host's `/etc` that is visible inside is a copy.
            let sealed = "! grep -q ' /etc/' /proc/self/mountinfo\necho gone > /etc/resolv.conf\n";
            let text = format!("#!/bin/sh\nset -e\necho {name} >> /log\n{sealed}{fetch}");
            fs::write(stages.join(name), text).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(stages.join(name), mode).unwrap();
        }
    }
}

fn tar(folder: &Path, words: &[&str]) {
    let status = Command::new("tar").args(words).current_dir(folder).status().unwrap();
    assert!(status.success(), "tar {words:?}");
}

#[test]
fn image_build_resumes_at_the_failed_stage() {
    let place = Place::new();
    place.write_recipe();
    place.typed(&["import", "small"]).expect(0);
    let name_servers = fs::read("/etc/resolv.conf").ok();
    let build = ["build", "--name", "mine", "--base", "small", "--recipe", "recipe"];
    place.run_cli_with_input(&build, &[("http_proxy", "http://127.0.0.1:9")]).expect_message(
        2,
        &["stage `python` failed", "connection refused", "build.log", "resumes at this stage"],
    );
    assert!(!place.root("mine").exists(), "nothing half-finished is there");
    assert_eq!(fs::read("/etc/resolv.conf").ok(), name_servers, "the host's own is as it was");
    let built = place.run_cli_with_input(&build, &[("http_proxy", "http://127.0.0.1:8")]).expect(0);
    assert!(built.stderr.contains("[2/6] packages already done"), "{}", built.stderr);
    assert!(built.stderr.contains("[6/6] finish   done in"), "{}", built.stderr);
    // The failed stage must clean up after its first run itself; the other stages ran once.
    assert_eq!(
        fs::read_to_string(place.root("mine").join("log")).unwrap(),
        "packages\npython\npython\nnode\nfiles\nfinish\n"
    );
    let again = place.run_cli_with_input(&build, &[("http_proxy", "http://127.0.0.1:9")]).expect(0);
    assert!(again.stdout.contains("mine is up to date"), "{}", again.stdout);
    // A change to the last stages is built on top of the existing ones.
    let files = place.folder.path().join("recipe/files/etc");
    fs::create_dir_all(&files).unwrap();
    fs::write(files.join("motd"), "hello\n").unwrap();
    let built = place.run_cli_with_input(&build, &[("http_proxy", "http://127.0.0.1:9")]).expect(0);
    assert!(built.stderr.contains("on the image `mine` that is there"), "{}", built.stderr);
    assert!(built.stderr.contains("[4/6] node     already done"), "{}", built.stderr);
    assert_eq!(
        fs::read_dir(place.folder.path().join("data/images")).unwrap().count(),
        2,
        "only the two images"
    );
}

#[test]
fn invalid_recipe_or_base_is_refused_and_named() {
    let place = Place::new();
    place.typed(&["build", "--recipe", "small"]).expect_message(2, &["is no recipe", "stages/packages"]);
    place.typed(&["build", "--base", "nothing"]).expect_message(2, &["no image `nothing`", "none yet"]);
    place.typed(&["build", "--name", "../x"]).expect_message(2, &["`../x` cannot be the name", "lower-case"]);
    place.typed(&["build", "--name", "host"]).expect_message(2, &["`host` is taken"]);
    place
        .typed(&["build", "--mirror", "not-a-url"])
        .expect_message(2, &["`not-a-url`", "http://mirror.example"]);
}

#[test]
fn every_archive_format_survives_export_and_import() {
    let place = Place::new();
    fs::write(place.folder.path().join("small/etc/mark"), "here\n").unwrap();
    let imported = place.typed(&["import", "small", "--json"]).expect(0).json();
    assert_eq!((&imported["system"], &imported["warnings"]), (&json!("Small"), &json!([])), "{imported}");
    place.typed(&["import", "small"]).expect_message(2, &["there is an image `small` already", "--replace"]);
    place.typed(&["import", "small", "--replace"]).expect(0);
    place.typed(&["export", "small", "--tar", "a.tar"]).expect(0);
    place.typed(&["export", "small", "--tar", "a.tar"]).expect_message(2, &["a.tar", "there already"]);
    let told = place.typed(&["export", "small", "--oci", "layout", "--json"]).expect(0).json();
    assert_eq!(told, json!({"name": "small", "form": "oci", "path": "layout"}));
    place
        .typed(&["export", "small", "--tar", "-", "--json"])
        .expect_message(2, &["both write to standard output"]);
    let folder = place.folder.path();
    for (form, program) in [("b.tar.gz", "gzip"), ("c.tar.zst", "zstd")] {
        let packed = Command::new(program).arg("-c").arg(folder.join("a.tar")).output().unwrap();
        assert!(packed.status.success(), "{program}");
        fs::write(folder.join(form), packed.stdout).unwrap();
    }
    tar(folder, &["--create", "--file", "layout.tar", "--directory", "layout", "."]);
    for source in ["a.tar", "b.tar.gz", "c.tar.zst", "layout", "layout.tar"] {
        let name = format!("from-{}", source.replace('.', "-"));
        place.typed(&["import", source, "--name", &name]).expect(0);
        let root = place.root(&name);
        assert_eq!(fs::read_to_string(root.join("etc/mark")).unwrap(), "here\n", "{source}");
        assert_eq!(fs::read_link(root.join("bin/sh")).unwrap(), Path::new("busybox"), "{source}");
    }
    place.typed(&["export", "small", "--ext4", "disk.ext4"]).expect(0);
    let content = Command::new("/usr/sbin/debugfs")
        .args(["-R", "cat /etc/mark", "disk.ext4"])
        .current_dir(folder)
        .output();
    assert_eq!(String::from_utf8_lossy(&content.unwrap().stdout), "here\n");
    let listed = place.typed(&["list", "--json", "--data", "data"]).expect(0).json();
    assert_eq!(listed["images"].as_array().unwrap().len(), 6, "{listed}");
    let table = place.typed(&["list", "--data", "data"]).expect(0);
    assert!(
        table.stdout.contains("Small") && table.stderr.contains("caisson image build"),
        "{}",
        table.stdout
    );
    let told = place.typed(&["rm", "small", "nope", "from-a-tar", "--json"]).expect(2).json();
    assert_eq!(told, json!({"removed": ["small"]}), "what went before the refusal is told");
    place.typed(&["rm", "from-a-tar"]).expect(0);
    place.typed(&["rm", "small"]).expect_message(2, &["no image `small`", "from-b-tar-gz"]);
    place.typed(&["export", "small", "--tar", "x"]).expect_message(2, &["no image `small`"]);
}

#[test]
fn image_layer_whiteouts_and_digests_are_honored() {
    let place = Place::new();
    let folder = place.folder.path();
    // The layout that `docker save` writes.
    fs::create_dir_all(folder.join("saved/upper/etc")).unwrap();
    tar(folder, &["--create", "--file", "saved/lower.tar", "--directory", "small", "."]);
    fs::write(folder.join("saved/upper/etc/.wh.os-release"), "").unwrap();
    fs::write(folder.join("saved/upper/etc/new"), "new").unwrap();
    tar(folder, &["--create", "--file", "saved/upper.tar", "--directory", "saved/upper", "."]);
    fs::remove_dir_all(folder.join("saved/upper")).unwrap();
    let manifest = json!([{"Config": "c.json", "RepoTags": [], "Layers": ["lower.tar", "upper.tar"]}]);
    fs::write(folder.join("saved/manifest.json"), manifest.to_string()).unwrap();
    tar(folder, &["--create", "--file", "saved.tar", "--directory", "saved", "."]);
    place.typed(&["import", "saved.tar"]).expect(0);
    let root = place.root("saved");
    assert!(
        root.join("etc/new").exists()
            && !root.join("etc/os-release").exists()
            && root.join("bin/sh").exists()
    );

    place.typed(&["export", "saved", "--oci", "layout"]).expect(0);
    for entry in fs::read_dir(folder.join("layout/blobs/sha256")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        // The layer is the only blob that does not start with a brace.
        if bytes[0] != b'{' {
            bytes.push(0);
            fs::write(&path, bytes).unwrap();
        }
    }
    place
        .typed(&["import", "layout", "--name", "forged"])
        .expect_message(2, &["layout", "has another content"]);
    assert!(!place.root("forged").exists());
}

#[test]
fn hostile_image_archives_are_refused_or_sanitized() {
    let place = Place::new();
    let folder = place.folder.path();
    fs::write(folder.join("victim"), "safe").unwrap();
    fs::create_dir_all(folder.join("evil/etc")).unwrap();
    fs::write(folder.join("evil/etc/x"), "x").unwrap();
    let evil = folder.join("evil");
    tar(
        &evil,
        &[
            "--create",
            "--file",
            "../up.tar",
            "--absolute-names",
            "--transform",
            "s,etc/x,../../victim,",
            "etc/x",
        ],
    );
    place.typed(&["import", "up.tar"]).expect_message(2, &["up.tar", "leads out of the image"]);
    assert_eq!(fs::read_to_string(folder.join("victim")).unwrap(), "safe");

    let status = Command::new("mkfifo").arg(folder.join("small/etc/pipe")).status().unwrap();
    assert!(status.success());
    tar(folder, &["--create", "--file", "pipe.tar", "--directory", "small", "."]);
    let imported = place.typed(&["import", "pipe.tar"]).expect(0);
    assert!(
        imported.stderr.contains("1 device files, sockets or pipes were left out"),
        "{}",
        imported.stderr
    );

    fs::File::create(folder.join("small/huge")).unwrap().set_len(1 << 40).unwrap();
    tar(folder, &["--create", "--sparse", "--file", "huge.tar", "--directory", "small", "."]);
    place
        .typed(&["import", "huge.tar", "--max-size", "1g"])
        .expect_message(2, &["huge", "1099511627776 bytes", "allowed"]);
    place.typed(&["import", "small", "--name", "huge"]).expect_message(2, &["huge"]);

    fs::write(folder.join("text.tar"), "this is no archive at all").unwrap();
    place.typed(&["import", "text.tar"]).expect_message(2, &["text.tar", "cannot be imported"]);
    fs::write(folder.join("short.tar.gz"), [0x1f, 0x8b, 8, 0]).unwrap();
    place.typed(&["import", "short.tar.gz"]).expect_message(2, &["short.tar.gz", "damaged"]);
    fs::create_dir_all(folder.join("nothing/music")).unwrap();
    place.typed(&["import", "nothing"]).expect_message(2, &["no root file system in it"]);
    place.typed(&["import", "missing.tar"]).expect_message(2, &["missing.tar", "No such file"]);
    assert_eq!(fs::read_dir(folder.join("data/images")).unwrap().count(), 1, "only what was imported");
}

#[test]
fn directory_import_skips_mounts_and_the_image_folder() {
    let place = Place::new();
    let folder = place.folder.path();
    place.typed(&["import", "small", "--name", "first"]).expect(0);
    // The folder of images lies inside the imported directory.
    fs::create_dir_all(folder.join("etc")).unwrap();
    fs::create_dir_all(folder.join("mounted")).unwrap();
    let sparse = fs::File::create(folder.join("etc/sparse")).unwrap();
    sparse.set_len(200 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (200 << 20) - 3).unwrap();
    let typed = command(folder, &["image", "import", ".", "--name", "whole"]);
    let mount = "mount -t tmpfs none mounted && echo x > mounted/inside && exec \"$@\"";
    let mut inside = Command::new("unshare");
    inside.args(["--map-root-user", "--mount", "sh", "-c", mount, "sh"]).arg(typed.get_program());
    inside.args(typed.get_args()).current_dir(folder);
    for (name, value) in typed.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    let imported = finish(inside, "").expect(0);
    for said in ["1 directories have another file system", "the folder of images itself was left out"] {
        assert!(imported.stderr.contains(said), "{}", imported.stderr);
    }
    let root = place.root("whole");
    assert!(root.join("small/bin/sh").is_symlink() && !root.join("data/images").exists());
    assert_eq!(fs::read_dir(root.join("mounted")).unwrap().count(), 0);
    let facts = fs::metadata(root.join("etc/sparse")).unwrap();
    let on_disk = std::os::unix::fs::MetadataExt::blocks(&facts) * 512;
    assert!(facts.len() == 200 << 20 && on_disk < 4 << 20, "{on_disk} bytes on disk");
    assert!(fs::read(root.join("etc/sparse")).unwrap().ends_with(b"end"));
}

#[test]
fn leftovers_of_an_interrupted_import_are_listed_and_removed() {
    let place = Place::new();
    place.typed(&["import", "small"]).expect(0);
    let work = place.folder.path().join("data/images/.work-half");
    fs::create_dir_all(work.join("import/etc")).unwrap();
    fs::write(work.join("import/etc/content"), vec![1; 3 << 20]).unwrap();
    fs::write(work.join("lock"), "").unwrap();
    let listed = place.typed(&["list", "--json", "--data", "data"]).expect(0).json();
    assert_eq!(listed["unfinished"][0]["name"], "half", "{listed}");
    assert_eq!(listed["images"].as_array().unwrap().len(), 1, "{listed}");
    let told = place.typed(&["list", "--data", "data"]).expect(0);
    assert!(told.stderr.contains("`half` is unfinished (3."), "{}", told.stderr);
    place.typed(&["rm", "half"]).expect(0);
    assert!(!work.exists());
    place.typed(&["rm", "half"]).expect_message(2, &["no image `half`"]);
}

#[test]
fn an_image_in_use_is_not_removed() {
    let place = Place::new();
    place.typed(&["import", "small"]).expect(0);
    let images = place.folder.path().join("data/images");
    let server = Server::start_with(Options { images: Some(images), ..Options::default() });
    let sandbox = server.create_sandbox(&json!({"image": "small"}));
    place.typed(&["rm", "small"]).expect_message(2, &["`small` is in use by a sandbox"]);
    sandbox.end().expect(204);
    let job = server.schedule(&json!({"image": "small", "steps": [shell("true")]}));
    job.wait_for("complete");
    server.assert_nothing_left();
    place.typed(&["rm", "small"]).expect(0);
}
