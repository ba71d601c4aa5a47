//! File operations, one message each.
// Clippy does not recognize the helper functions as part of the tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use protocol::{
    CallStatus, FileErrorCode, FileKind, FileOperation, FileReply, FileResult, FileStat, GuestClient,
};
use support::*;

async fn ask(client: &GuestClient, operation: FileOperation) -> FileReply {
    client.file(None, operation).await.unwrap()
}

async fn refused(client: &GuestClient, operation: FileOperation) -> (FileErrorCode, String) {
    let error = file_error(client.file(None, operation).await.unwrap_err());
    (error.code, error.message)
}

fn read(path: &str) -> FileOperation {
    FileOperation::Read { path: path.to_owned(), offset: 0, limit_bytes: u64::MAX }
}

fn write(path: &str, content: &str) -> FileOperation {
    FileOperation::Write { path: path.to_owned(), content: content.to_owned(), mode: None }
}

fn edit(path: &str, old: &str, new: &str) -> FileOperation {
    FileOperation::Edit { path: path.to_owned(), old: old.to_owned(), new: new.to_owned() }
}

fn list(path: &str, depth: u32, limit: u32) -> FileOperation {
    FileOperation::List { path: path.to_owned(), depth, limit, skip: Vec::new() }
}

fn remove(path: &str, recursive: bool) -> FileOperation {
    FileOperation::Remove { path: path.to_owned(), recursive }
}

fn rename(from: &str, to: &str) -> FileOperation {
    FileOperation::Move { from: from.to_owned(), to: to.to_owned() }
}

async fn stat(client: &GuestClient, path: &str) -> FileStat {
    let FileReply::Stat(stat) = ask(client, FileOperation::Stat { path: path.to_owned() }).await else {
        panic!("no stat of {path}")
    };
    stat
}

#[tokio::test]
async fn written_file_can_be_read_in_ranges_and_is_owned_by_the_agent() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    assert_eq!(ask(&client, write("a/b/c.txt", "hello wörld")).await, FileReply::Written { size: 12 });
    let all = FileReply::Content { content: "hello wörld".to_owned(), base64: false, size: 12 };
    assert_eq!(ask(&client, read("a/b/c.txt")).await, all);
    let range = FileOperation::Read { path: "./a//b/c.txt".to_owned(), offset: 6, limit_bytes: 2 };
    // The limit splits a two-byte character, which is left for the next read.
    assert_eq!(
        ask(&client, range).await,
        FileReply::Content { content: "w".to_owned(), base64: false, size: 12 }
    );
    let metadata = guest.workspace().join("a/b/c.txt").metadata().unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o644);
    if is_root() {
        assert_eq!((metadata.uid(), metadata.gid()), (1000, 1000));
        assert_eq!(guest.workspace().join("a/b").metadata().unwrap().uid(), 1000);
    }
    let beyond = FileOperation::Read { path: "a/b/c.txt".to_owned(), offset: 100, limit_bytes: 2 };
    assert_eq!(
        ask(&client, beyond).await,
        FileReply::Content { content: String::new(), base64: false, size: 12 }
    );
}

#[tokio::test]
async fn binary_content_is_returned_as_base64() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    guest.put("binary", [0xff, 0xfe, 0x00]);
    let content = FileReply::Content { content: "//4A".to_owned(), base64: true, size: 3 };
    assert_eq!(ask(&client, read("binary")).await, content);
    guest.put("zeros", vec![0; 9 * 1024 * 1024]);
    let FileReply::Content { content, base64: true, size } = ask(&client, read("zeros")).await else {
        panic!("text")
    };
    assert_eq!((content.len(), size), ((8 * 1024 * 1024_usize).div_ceil(3) * 4, 9 * 1024 * 1024));
    assert_eq!(refused(&client, edit("binary", "a", "b")).await.0, FileErrorCode::NotText);
}

#[tokio::test]
async fn replaced_file_keeps_its_mode_and_leaves_no_temporary_file() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    guest.put("script", "old");
    std::fs::set_permissions(guest.workspace().join("script"), std::fs::Permissions::from_mode(0o755))
        .unwrap();
    ask(&client, write("script", "new")).await;
    ask(&client, edit("script", "new", "newer")).await;
    assert_eq!(stat(&client, "script").await.mode, 0o755);
    let special =
        FileOperation::Write { path: "special".to_owned(), content: String::new(), mode: Some(0o4711) };
    ask(&client, special).await;
    assert_eq!(stat(&client, "special").await.mode, 0o711);
    let names: Vec<_> =
        std::fs::read_dir(guest.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[tokio::test]
async fn paths_outside_the_workspace_are_refused_with_advice() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    symlink("/etc", guest.workspace().join("absolute")).unwrap();
    symlink("../..", guest.workspace().join("up")).unwrap();
    symlink("/etc/passwd", guest.workspace().join("file")).unwrap();
    for path in ["/etc/passwd", "../secret", "a/../../b", "", "absolute/passwd", "up/x", "file"] {
        let (code, message) = refused(&client, read(path)).await;
        assert_eq!(code, FileErrorCode::OutsideWorkspace, "{path}: {message}");
        assert!(message.contains("use") || message.contains("name"), "{message}");
    }
    for path in ["absolute/x", "up/x"] {
        assert_eq!(refused(&client, write(path, "x")).await.0, FileErrorCode::OutsideWorkspace, "{path}");
        assert_eq!(refused(&client, list("absolute", 1, 10)).await.0, FileErrorCode::OutsideWorkspace);
        assert_eq!(refused(&client, rename("file", path)).await.0, FileErrorCode::OutsideWorkspace);
    }
    assert_eq!(refused(&client, read("a\0b")).await.0, FileErrorCode::InvalidPath);
    assert_eq!(refused(&client, read(&"x/".repeat(4000))).await.0, FileErrorCode::InvalidPath);
    assert_eq!(refused(&client, read(&"x".repeat(300))).await.0, FileErrorCode::InvalidPath);
}

#[tokio::test]
async fn links_inside_the_workspace_are_followed_for_reading_and_replaced_by_writing() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    guest.make_directory("runs");
    guest.put("runs/3.log", "three");
    symlink("runs", guest.workspace().join("newest")).unwrap();
    symlink("runs/3.log", guest.workspace().join("log")).unwrap();
    for path in ["newest/3.log", "log"] {
        let FileReply::Content { content, .. } = ask(&client, read(path)).await else { panic!("no content") };
        assert_eq!(content, "three");
    }
    let fact = stat(&client, "log").await;
    assert_eq!((fact.kind, fact.link_target.as_deref()), (FileKind::Symlink, Some("runs/3.log")));
    assert_eq!(refused(&client, edit("log", "three", "3")).await.0, FileErrorCode::Other);
}

#[tokio::test]
async fn ambiguous_edit_reports_the_number_of_matches() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    guest.put("code", "let a = 1;\nlet a = 1;\n");
    let (code, message) = refused(&client, edit("code", "let a = 1;", "")).await;
    assert_eq!(code, FileErrorCode::ManyMatches);
    assert!(message.contains("2 times"), "{message}");
    assert_eq!(refused(&client, edit("code", "let b", "")).await.0, FileErrorCode::NoMatch);
    assert_eq!(refused(&client, edit("none", "x", "")).await.0, FileErrorCode::NotFound);
    ask(&client, edit("code", "let a = 1;\nlet", "let x = 2;\nlet")).await;
    assert_eq!(std::fs::read_to_string(guest.workspace().join("code")).unwrap(), "let x = 2;\nlet a = 1;\n");
}

#[tokio::test]
async fn a_tree_is_listed_sorted_to_a_depth_and_a_limit() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    for path in ["b/two", "a/one", "a/sub/deep", "c"] {
        ask(&client, write(path, "x")).await;
    }
    let paths = |reply| {
        let FileReply::Entries { entries, truncated } = reply else { panic!("no entries") };
        (entries.into_iter().map(|entry| entry.path).collect::<Vec<_>>().join(" "), truncated)
    };
    assert_eq!(paths(ask(&client, list("", 1, 100)).await), ("a b c".to_owned(), false));
    assert_eq!(paths(ask(&client, list(".", 2, 100)).await), ("a a/one a/sub b b/two c".to_owned(), false));
    assert_eq!(paths(ask(&client, list("a", 9, 100)).await), ("a/one a/sub a/sub/deep".to_owned(), false));
    assert_eq!(paths(ask(&client, list("", 9, 3)).await), ("a a/one a/sub".to_owned(), true));
    assert_eq!(refused(&client, list("c", 1, 1)).await.0, FileErrorCode::NotDirectory);
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
    std::fs::write(guest.workspace().join("b").join(odd), "x").unwrap();
    assert_eq!(paths(ask(&client, list("b", 1, 9)).await).0, "b/odd\u{fffd} b/two");
}

#[tokio::test]
async fn moving_refuses_an_existing_target_and_makes_parents() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    guest.put("one", "1");
    guest.put("two", "2");
    assert_eq!(refused(&client, rename("one", "two")).await.0, FileErrorCode::Exists);
    assert_eq!(refused(&client, rename("none", "three")).await.0, FileErrorCode::NotFound);
    ask(&client, rename("one", "new/place")).await;
    assert_eq!(std::fs::read(guest.workspace().join("new/place")).unwrap(), b"1");
    assert_eq!(refused(&client, rename("new", "new/inside")).await.0, FileErrorCode::Other);
}

#[tokio::test]
async fn remove_needs_recursive_for_trees_and_never_follows_links() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    guest.put("kept", "kept");
    ask(&client, write("tree/a/b/c/file", "x")).await;
    symlink("../kept", guest.workspace().join("tree/link")).unwrap();
    symlink("..", guest.workspace().join("tree/a/up")).unwrap();
    assert_eq!(refused(&client, remove("tree", false)).await.0, FileErrorCode::NotEmpty);
    assert_eq!(refused(&client, remove("none", true)).await.0, FileErrorCode::NotFound);
    assert_eq!(refused(&client, remove(".", true)).await.0, FileErrorCode::OutsideWorkspace);
    ask(&client, remove("tree", true)).await;
    assert!(!guest.workspace().join("tree").exists());
    ask(&client, FileOperation::MakeDirectory { path: "made/deep".to_owned() }).await;
    ask(&client, FileOperation::MakeDirectory { path: "made/deep".to_owned() }).await;
    ask(&client, remove("made/deep", false)).await;
    ask(&client, remove("kept", false)).await;
    guest.put("file", "");
    let blocked = FileOperation::MakeDirectory { path: "file".to_owned() };
    assert_eq!(refused(&client, blocked).await.0, FileErrorCode::Exists);
    assert_eq!(refused(&client, write("file/below", "")).await.0, FileErrorCode::NotDirectory);
    assert_eq!(refused(&client, write("made", "")).await.0, FileErrorCode::IsDirectory);
    assert_eq!(refused(&client, read("made")).await.0, FileErrorCode::IsDirectory);
}

#[tokio::test]
async fn a_tree_too_deep_to_remove_by_descriptors_is_refused_with_advice() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    run_shell(&client, "deep", "for i in $(seq 400); do mkdir d; cd d; done").await;
    let (code, message) = refused(&client, remove("d", true)).await;
    assert_eq!(code, FileErrorCode::Other);
    assert!(message.contains("rm -rf"), "{message}");
}

#[tokio::test]
async fn a_pipe_does_not_block_the_guest() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    run_shell(&client, "pipe", "mkfifo pipe").await;
    assert_eq!(refused(&client, read("pipe")).await.0, FileErrorCode::NotFile);
    assert_eq!(stat(&client, "pipe").await.kind, FileKind::Other);
    ask(&client, write("pipe", "now a file")).await;
}

#[tokio::test]
async fn sockets_link_loops_and_overlong_names_have_distinct_errors() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let _listener = std::os::unix::net::UnixListener::bind(guest.workspace().join("socket")).unwrap();
    run_shell(&client, "links", "ln -s two one; ln -s one two; ln -s one/x way").await;
    assert_eq!(refused(&client, read("socket")).await.0, FileErrorCode::NotFile);
    for name in ["one", "two", "way", "one/below"] {
        assert_eq!(refused(&client, read(name)).await.0, FileErrorCode::LinkLoop, "{name}");
    }
    let long = "n".repeat(256);
    for refusal in [refused(&client, write(&long, "x")).await, refused(&client, read(&long)).await] {
        assert_eq!(refusal.0, FileErrorCode::InvalidPath);
        assert!(refusal.1.contains("at most 255 bytes"), "{}", refusal.1);
    }
}

#[tokio::test]
async fn operation_with_a_key_runs_once() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    assert_eq!(client.call_status(key("write")).await.unwrap(), CallStatus::Unknown);
    for _ in 0..2 {
        let reply = client.file(Some(key("write")), write("file", "first")).await.unwrap();
        assert_eq!(reply, FileReply::Written { size: 5 });
        guest.put("file", "changed since");
    }
    assert_eq!(std::fs::read(guest.workspace().join("file")).unwrap(), b"changed since");
    let CallStatus::File(FileResult::Ok(FileReply::Written { size: 5 })) =
        client.call_status(key("write")).await.unwrap()
    else {
        panic!("not kept")
    };
    guest.put("large", "y".repeat(100_000));
    for _ in 0..2 {
        let FileReply::Content { content, .. } = client.file(Some(key("read")), read("large")).await.unwrap()
        else {
            panic!("no content")
        };
        assert!(content.len() == 100_000 && content.starts_with('y'));
        guest.put("large", "z");
    }
    let refused = file_error(client.file(Some(key("gone")), read("none")).await.unwrap_err());
    assert_eq!(refused.code, FileErrorCode::NotFound);
    assert!(matches!(client.call_status(key("gone")).await.unwrap(), CallStatus::File(FileResult::Error(_))));
}

#[tokio::test]
async fn files_of_other_users_are_denied() {
    assert!(is_root(), "run this test as root: it needs two users");
    let guest = TestGuest::start();
    let client = guest.client().await;
    let secret = guest.workspace().join("secret");
    std::fs::write(&secret, "root's own").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(refused(&client, read("secret")).await.0, FileErrorCode::Denied);
}

#[tokio::test]
async fn swapping_links_concurrently_never_escapes_the_workspace() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let outside = tempfile::tempdir().unwrap();
    std::fs::set_permissions(outside.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(outside.path().join("file"), "outside").unwrap();
    std::fs::set_permissions(outside.path().join("file"), std::fs::Permissions::from_mode(0o666)).unwrap();
    let outside_path = outside.path().to_str().unwrap();
    // Alternates a directory and a link that leads outside under one name.
    let swap = format!(
        "import os, ctypes\n\
         os.mkdir('real'); open('real/file', 'w').write('inside')\n\
         os.symlink('{outside_path}', 'trap'); os.rename('real', 'name')\n\
         libc = ctypes.CDLL(None)\n\
         print('ready', flush=True)\n\
         while True: libc.renameat2(-100, b'name', -100, b'trap', 2)\n"
    );
    let swapper =
        exec("swap", protocol::Program::Arguments(vec!["python3".to_owned(), "-c".to_owned(), swap]));
    let mut follower = client.exec(swapper, protocol::Follow::Live).await.unwrap();
    wait_for_output(&mut follower, &mut Seen::default(), "ready").await;
    let (mut inside, mut out) = (0, 0);
    while inside < 50 || out < 50 {
        match client.file(None, read("name/file")).await {
            Ok(FileReply::Content { content, .. }) => {
                assert_ne!(content, "outside");
                inside += 1;
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                file_error(error);
                out += 1;
            }
        }
        let _ = client.file(None, write("name/file", "inside")).await;
        let _ = client.file(None, remove("name/other", true)).await;
    }
    client.kill(key("swap")).await.unwrap();
    assert_eq!(std::fs::read(outside.path().join("file")).unwrap(), b"outside");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}
