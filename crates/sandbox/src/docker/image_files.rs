//! The files that are added to an image. Pure functions, except for packing the archive.

use std::fmt::Write as _;
use std::io;
use std::path::{Component, Path};

use super::disk::DIRECTORIES;
use super::layout::{AGENT_ID, GUEST_PROGRAM, PRIVATE, PRIVATE_MODE, RELAY_ID, STATE, STATE_MODE};
use crate::host::java_store::{STORE, java_store};

pub(super) const USERS: &str = "/etc/passwd";
pub(super) const GROUPS: &str = "/etc/group";
/// The certificate bundle that the environment variables of clients point to.
pub(super) const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The `/etc/passwd` entry of the agent, for an image without that user id.
pub(super) const USER_LINE: &str = "agent:x:1000:1000:agent:/home/agent:/bin/sh";
/// The agent's `/etc/group` entry.
pub(super) const GROUP_LINE: &str = "agent:x:1000:";

/// The files that are added to an image beside the guest.
#[derive(Debug, Default)]
pub(super) struct Additions {
    /// Content of `/etc/passwd`.
    pub(super) users: String,
    /// Content of `/etc/group`.
    pub(super) groups: String,
    /// Path and content of the certificate bundle.
    pub(super) bundle: Option<(String, String)>,
    /// All certificates that the prepared image trusts.
    pub(super) trusted: String,
    /// The image's content of the agent's home directory, as a tar archive.
    pub(super) home: Vec<u8>,
}

/// Adds the agent to a list of users or groups. Returns the list unchanged if it already has that id or that name.
pub(super) fn with_agent(list: &str, line: &str) -> String {
    let has =
        |field: usize, wanted: &str| list.lines().any(|line| line.split(':').nth(field) == Some(wanted));
    let mut text = if list.is_empty() && line == USER_LINE {
        "root:x:0:0:root:/root:/bin/sh\n".to_owned()
    } else if list.is_empty() {
        "root:x:0:\n".to_owned()
    } else {
        list.to_owned()
    };
    if has(2, "1000") || has(0, "agent") {
        return text;
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let _ = writeln!(text, "{line}");
    text
}

/// Appends certificates to a bundle, skipping those it has already.
pub(super) fn with_certificates(bundle: &str, extra: &[String]) -> String {
    let mut text = bundle.to_owned();
    for certificate in extra.iter().map(|certificate| certificate.trim()) {
        if text.contains(certificate) {
            continue;
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let _ = writeln!(text, "{certificate}");
    }
    text
}

/// Removes `.` and `..` from an absolute path.
pub(super) fn clean(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    format!("/{}", parts.join("/"))
}

/// Packs everything into a tar archive for the root of an image.
pub(super) fn archive(additions: &Additions, guest: &[u8]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (_, path, mode) in DIRECTORIES {
        let owner = if mode & 0o1000 == 0 { AGENT_ID } else { 0 };
        directory(&mut archive, path, (owner, owner), mode)?;
    }
    directory(&mut archive, "/.caisson", (0, 0), 0o755)?;
    directory(&mut archive, PRIVATE, (RELAY_ID, RELAY_ID), PRIVATE_MODE)?;
    directory(&mut archive, STATE, (AGENT_ID, RELAY_ID), STATE_MODE)?;
    file(&mut archive, GUEST_PROGRAM, guest, 0o755)?;
    file(&mut archive, USERS, additions.users.as_bytes(), 0o644)?;
    file(&mut archive, GROUPS, additions.groups.as_bytes(), 0o644)?;
    file(&mut archive, STORE, &java_store(&additions.trusted), 0o644)?;
    if let Some((path, content)) = &additions.bundle {
        file(&mut archive, path, content.as_bytes(), 0o644)?;
    }
    archive.into_inner()
}

fn header(kind: tar::EntryType, (user, group): (u32, u32), mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_uid(user.into());
    header.set_gid(group.into());
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_size(size as u64);
    header
}

fn directory(
    archive: &mut tar::Builder<Vec<u8>>,
    path: &str,
    owner: (u32, u32),
    mode: u32,
) -> io::Result<()> {
    let mut header = header(tar::EntryType::Directory, owner, mode, 0);
    archive.append_data(&mut header, format!("{}/", path.trim_start_matches('/')), io::empty())
}

fn file(archive: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8], mode: u32) -> io::Result<()> {
    let mut header = header(tar::EntryType::Regular, (0, 0), mode, content.len());
    archive.append_data(&mut header, path.trim_start_matches('/'), content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_added_unless_its_id_or_name_exists() {
        let plain = "root:x:0:0::/root:/bin/sh";
        assert_eq!(with_agent(plain, USER_LINE), format!("{plain}\n{USER_LINE}\n"));
        for taken in ["node:x:1000:1000::/home/node:/bin/sh\n", "agent:x:2000:2000::/:/bin/sh\n"] {
            assert_eq!(with_agent(taken, USER_LINE), taken);
        }
        assert!(with_agent("", GROUP_LINE).starts_with("root:x:0:\nagent"));
    }

    #[test]
    fn a_certificate_is_added_once() {
        let extra = ["one\n".to_owned(), "two".to_owned()];
        assert_eq!(with_certificates("one", &extra), "one\ntwo\n");
        assert_eq!(with_certificates("", &extra), "one\ntwo\n");
    }

    #[test]
    fn link_paths_are_normalized() {
        assert_eq!(clean(Path::new("/etc/ssl/certs/../../pki/./x.pem")), "/etc/pki/x.pem");
        assert_eq!(clean(Path::new("/../..")), "/");
    }

    #[test]
    fn archive_contains_guest_and_denies_agent_access_to_its_state() {
        let archive = archive(&Additions::default(), b"program").unwrap();
        let mut found = std::collections::BTreeMap::new();
        for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            found.insert(
                entry.path().unwrap().display().to_string().trim_end_matches('/').to_owned(),
                (header.uid().unwrap(), header.gid().unwrap(), header.mode().unwrap()),
            );
        }
        assert_eq!(found[".caisson/guest"], (0, 0, 0o755));
        assert_eq!(found[".caisson/private"], (65_532, 65_532, 0o700));
        assert_eq!(found[".caisson/private/state"], (1000, 65_532, 0o2710));
        assert_eq!(found["workspace"], (1000, 1000, 0o755));
        assert_eq!(found["tmp"], (0, 0, 0o1777));
    }
}
