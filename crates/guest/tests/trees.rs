//! File and tree transfers: download, upload, pack, unpack, watch.
// Clippy does not recognize the helper functions as part of the tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use protocol::{FileDownload, FileErrorCode, FileOperation, FileReply, GuestClient};
use rustix::fs::{Mode, OFlags};
use support::*;
use tar::{Archive, Builder, EntryType, Header};

async fn collect(mut download: FileDownload) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = download.next().await.unwrap() {
        all.extend_from_slice(&bytes);
    }
    all
}

async fn pack(client: &GuestClient, path: &str, exclude: &[&str]) -> Vec<u8> {
    let exclude = exclude.iter().map(|&name| name.to_owned()).collect();
    collect(client.pack(path.to_owned(), exclude, None).await.unwrap()).await
}

async fn unpack(
    client: &GuestClient,
    path: &str,
    archive: &[u8],
) -> Result<FileReply, protocol::ProtocolError> {
    let mut upload = client.unpack(path.to_owned()).await.unwrap();
    for part in archive.chunks(777) {
        upload.write(part).await.unwrap();
    }
    upload.finish().await
}

fn names(archive: &[u8]) -> Vec<String> {
    let mut archive = Archive::new(archive);
    let entries = archive.entries().unwrap();
    entries.map(|entry| String::from_utf8_lossy(&entry.unwrap().path_bytes()).into_owned()).collect()
}

#[tokio::test]
async fn a_file_is_downloaded_whole_and_in_part() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let content: Vec<u8> = (0..3_000_000u32).map(|number| number.to_le_bytes()[1]).collect();
    guest.put("big", &content);
    let (stat, download) = client.download("big".to_owned(), 0, None).await.unwrap();
    assert_eq!(stat.size, 3_000_000);
    assert_eq!(collect(download).await, content);
    let (_, download) = client.download("big".to_owned(), 1_000_000, Some(500_000)).await.unwrap();
    assert_eq!(collect(download).await, &content[1_000_000..1_500_000]);
    let missing = client.download("none".to_owned(), 0, None).await.map(drop).unwrap_err();
    assert_eq!(file_error(missing).code, FileErrorCode::NotFound);
}

#[tokio::test]
async fn upload_appears_complete_or_not_at_all() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut upload = client.upload("new/file".to_owned(), Some(0o600)).await.unwrap();
    upload.write(&vec![1; 300_000]).await.unwrap();
    assert_eq!(upload.finish().await.unwrap(), FileReply::Written { size: 300_000 });
    let metadata = guest.workspace().join("new/file").metadata().unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o7777), (300_000, 0o600));

    let mut broken = client.upload("new/broken".to_owned(), None).await.unwrap();
    broken.write(&vec![2; 300_000]).await.unwrap();
    drop(broken);
    // The guest notices the closed stream with a delay. A new link ensures that the first one is gone.
    let client = guest.client().await;
    loop {
        let entries = client
            .file(None, FileOperation::List { path: "new".to_owned(), depth: 1, limit: 9, skip: Vec::new() })
            .await;
        let FileReply::Entries { entries, .. } = entries.unwrap() else { panic!("no entries") };
        if entries.len() == 1 {
            break;
        }
    }
    let mut refused = client.upload("../out".to_owned(), None).await.unwrap();
    refused.write(&vec![3; 2_000_000]).await.unwrap();
    assert_eq!(file_error(refused.finish().await.unwrap_err()).code, FileErrorCode::OutsideWorkspace);
}

#[tokio::test]
async fn a_tree_survives_packing_and_unpacking() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let long = format!("deep/{}/{}", "d".repeat(120), "f".repeat(150));
    for (path, content) in [("b.txt", "bee"), ("a/one", "1"), ("a/empty", ""), (long.as_str(), "long")] {
        let write =
            FileOperation::Write { path: path.to_owned(), content: content.to_owned(), mode: Some(0o640) };
        client.file(None, write).await.unwrap();
    }
    run_shell(&client, "make", "mkdir hollow; mkfifo pipe; printf x > $'odd\\xff'; touch -d @1000000000 b.txt; head -c 700000 /dev/urandom > big").await;
    symlink("../b.txt", guest.workspace().join("a/link")).unwrap();
    symlink("x".repeat(200), guest.workspace().join("longlink")).unwrap();
    let archive = pack(&client, "", &[]).await;
    let mut expected = vec![
        "a",
        "a/empty",
        "a/link",
        "a/one",
        "b.txt",
        "big",
        "deep",
        &long[..125],
        &long,
        "hollow",
        "longlink",
        "odd\u{fffd}",
    ];
    expected.sort_unstable();
    assert_eq!(names(&archive).iter().map(|name| name.trim_end_matches('/')).collect::<Vec<_>>(), expected);
    assert_eq!(unpack(&client, "copy/of", &archive).await.unwrap(), FileReply::Done);
    let copy = guest.workspace().join("copy/of");
    assert_eq!(
        std::fs::read(copy.join("big")).unwrap(),
        std::fs::read(guest.workspace().join("big")).unwrap()
    );
    assert_eq!(std::fs::read(copy.join(&long)).unwrap(), b"long");
    assert_eq!(std::fs::read_link(copy.join("a/link")).unwrap().to_str(), Some("../b.txt"));
    assert_eq!(std::fs::read(copy.join(std::ffi::OsStr::from_bytes(b"odd\xff"))).unwrap(), b"x");
    let metadata = copy.join("b.txt").metadata().unwrap();
    assert_eq!((metadata.mtime(), metadata.mode() & 0o7777), (1_000_000_000, 0o640));
    // Unpack again over the existing files.
    assert_eq!(unpack(&client, "copy/of", &archive).await.unwrap(), FileReply::Done);
}

/// The host keeps every name in memory, so a job must not control how much that is.
#[tokio::test]
async fn entries_beyond_the_path_limit_are_left_out_and_reported_shortened() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let name = "n".repeat(250);
    let mut place = rustix::fs::open(guest.workspace(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..20 {
        rustix::fs::mkdirat(&place, &name, Mode::from(0o755)).unwrap();
        place = rustix::fs::openat(&place, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
        rustix::fs::openat(&place, "file", OFlags::CREATE | OFlags::WRONLY, Mode::from(0o644)).unwrap();
    }
    let mut download = client.pack(String::new(), Vec::new(), None).await.unwrap();
    let mut archive = Vec::new();
    while let Some(bytes) = download.next().await.unwrap() {
        archive.extend_from_slice(&bytes);
    }
    let names = names(&archive);
    assert_eq!(names.len(), 2 * 16, "sixteen directories with a file each");
    assert!(names.iter().all(|name| name.len() <= 4097));
    // Only the seventeenth directory is reported; the walk does not enter it.
    let left_out = download.left_out();
    assert_eq!(left_out.len(), 1);
    assert!(left_out[0].len() < 400 && left_out[0].ends_with("..."), "{}", left_out[0]);
}

#[tokio::test]
async fn packing_skips_excluded_paths_and_refuses_missing_directories() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    run_shell(&client, "make", "mkdir -p src/target target targets; touch src/target/a target/b targets/c")
        .await;
    let archive = pack(&client, "", &["target/", "src/target/a"]).await;
    assert_eq!(names(&archive), ["src", "src/target", "targets", "targets/c"]);
    assert_eq!(names(&pack(&client, "src", &[]).await), ["target", "target/a"]);
    let error = client.pack("none".to_owned(), Vec::new(), None).await.unwrap().next().await.unwrap_err();
    assert_eq!(file_error(error).code, FileErrorCode::NotFound);
}

#[tokio::test]
async fn files_that_change_while_they_are_packed_do_not_break_the_archive() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let churn = "import os, random\n\
        print('ready', flush=True)\n\
        while True:\n\
        \x20 for i in range(20):\n\
        \x20  try:\n\
        \x20   f = open(f'f{i}', 'w'); f.write('x' * random.randrange(300000)); f.flush()\n\
        \x20   f.truncate(random.randrange(100000)); f.close()\n\
        \x20   if random.random() < 0.3: os.unlink(f'f{i}')\n\
        \x20  except FileNotFoundError: pass\n";
    let churn = exec(
        "churn",
        protocol::Program::Arguments(vec!["python3".to_owned(), "-c".to_owned(), churn.to_owned()]),
    );
    let mut follower = client.exec(churn, protocol::Follow::Live).await.unwrap();
    wait_for_output(&mut follower, &mut Seen::default(), "ready").await;
    for _ in 0..10 {
        let archive = pack(&client, "", &[]).await;
        for entry in Archive::new(&archive[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let size = entry.size();
            assert_eq!(std::io::copy(&mut entry, &mut std::io::sink()).unwrap(), size);
        }
        assert!(archive.ends_with(&[0; 1024]));
    }
    client.kill(key("churn")).await.unwrap();
}

fn hostile(path: &[u8], kind: EntryType, link: &[u8]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..path.len()].copy_from_slice(path);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_entry_type(kind);
    header.set_mode(0o6777);
    header.set_size(if kind == EntryType::Regular { 3 } else { 0 });
    header.set_cksum();
    builder.append(&header, if kind == EntryType::Regular { &b"bad"[..] } else { b"" }).unwrap();
    builder.into_inner().unwrap()
}

#[tokio::test]
async fn hostile_archives_are_refused() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    symlink("/tmp", guest.workspace().join("out")).unwrap();
    for (path, kind, link) in [
        ("../evil", EntryType::Regular, ""),
        ("/tmp/evil", EntryType::Regular, ""),
        ("a/../../evil", EntryType::Regular, ""),
        ("out/evil", EntryType::Regular, ""),
        ("out/evil", EntryType::Directory, ""),
        ("link", EntryType::Symlink, ""),
        ("hard", EntryType::Link, "../../../etc/passwd"),
        ("hard", EntryType::Link, "/etc/passwd"),
        ("hard", EntryType::Link, "out/passwd"),
        ("device", EntryType::Char, ""),
        ("block", EntryType::Block, ""),
        ("pipe", EntryType::Fifo, ""),
    ] {
        let archive = hostile(path.as_bytes(), kind, link.as_bytes());
        let error = file_error(unpack(&client, "", &archive).await.unwrap_err());
        assert!(
            matches!(error.code, FileErrorCode::OutsideWorkspace | FileErrorCode::NotFound),
            "{path} -> {link}: {error:?}"
        );
    }
    assert!(!std::path::Path::new("/tmp/evil").exists());
    let names: Vec<_> =
        std::fs::read_dir(guest.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["out"]);
    // The set-user-ID bit is dropped.
    unpack(&client, "", &hostile(b"fine", EntryType::Regular, b"")).await.unwrap();
    assert_eq!(guest.workspace().join("fine").metadata().unwrap().permissions().mode() & 0o7777, 0o777);
}

#[tokio::test]
async fn unpacked_symlinks_are_kept_but_never_written_through() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    for target in ["/usr/bin/python3", "../../x", "/tmp"] {
        unpack(&client, "", &hostile(b"link", EntryType::Symlink, target.as_bytes())).await.unwrap();
        assert_eq!(std::fs::read_link(guest.workspace().join("link")).unwrap().to_str(), Some(target));
    }
    let through = unpack(&client, "", &hostile(b"link/evil", EntryType::Regular, b"")).await;
    assert_eq!(file_error(through.unwrap_err()).code, FileErrorCode::OutsideWorkspace);
    assert!(!std::path::Path::new("/tmp/evil").exists());
}

#[tokio::test]
async fn broken_archives_are_refused() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let good = hostile(b"file", EntryType::Regular, b"");
    let cut = file_error(unpack(&client, "", &good[..514]).await.unwrap_err());
    assert!(cut.message.contains("middle"), "{cut:?}");
    let noise: Vec<u8> = (0..2000u32).map(|at| (at * 7 + 1) as u8).collect();
    assert!(file_error(unpack(&client, "", &noise).await.unwrap_err()).message.contains("checksum"));
    let mut endless = hostile(b"name", EntryType::GNULongName, b"");
    let mut header = Header::from_byte_slice(&endless[..512]).clone();
    header.set_size(1 << 40);
    header.set_cksum();
    endless[..512].copy_from_slice(header.as_bytes());
    assert!(file_error(unpack(&client, "", &endless).await.unwrap_err()).message.contains("too long"));
    let mut absurd = header;
    absurd.set_entry_type(EntryType::Regular);
    absurd.set_size(u64::MAX);
    absurd.set_cksum();
    assert!(unpack(&client, "", absurd.as_bytes()).await.is_err());
}

#[tokio::test]
async fn changes_below_a_directory_are_reported() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    guest.make_directory("seen");
    guest.make_directory("unseen");
    let mut watch = client.watch("seen".to_owned()).await.unwrap();
    // Make changes until the watch is active.
    let mut first = None;
    let mut number = 0;
    while first.is_none() {
        number += 1;
        guest.put(&format!("seen/{number}"), "x");
        first = tokio::time::timeout(std::time::Duration::from_millis(20), watch.next()).await.ok();
    }
    assert_eq!(first.unwrap().unwrap().change, "created");
    guest.put("unseen/file", "x");
    run_shell(&client, "change", "mkdir -p seen/new/deep; echo x > seen/new/deep/file; rm seen/1").await;
    let mut wanted = vec![("seen/new", "created"), ("seen/new/deep/file", "created"), ("seen/1", "removed")];
    while !wanted.is_empty() {
        let change = watch.next().await.unwrap();
        assert!(change.path.starts_with("seen/"), "{change:?}");
        wanted.retain(|(path, kind)| *path != change.path || *kind != change.change);
    }
    let mut missing = client.watch("none".to_owned()).await.unwrap();
    assert_eq!(file_error(missing.next().await.unwrap_err()).code, FileErrorCode::NotFound);
}
