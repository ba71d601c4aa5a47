//! Which user ids sandboxes get: ranges if the server is root, otherwise the user's subordinate ids, otherwise only
//! the user's own id.

use std::fs;
use std::path::Path;

use launcher::spec::{ID_MAP_PROGRAMS, Slots, Users};
use rustix::process::geteuid;

use super::NamespaceConfig;
use super::layout::Layout;
use crate::host::disk::Owners;
use crate::host::packages;

const PASSWD: &str = "/etc/passwd";
const SUBUID_FILE: &str = "/etc/subuid";
const SUBGID_FILE: &str = "/etc/subgid";
/// The usual first subordinate id on a host, and the number of ids per user.
const FIRST_SUBORDINATE_ID: u32 = 100_000;
const SUBORDINATE_ID_COUNT: u32 = 65_536;

/// Which user ids sandboxes get, and why not better ones.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) users: Users,
    /// Why an ordinary user has no subordinate ids.
    pub(super) obstacle: Option<Obstacle>,
}

/// A problem, and the command that fixes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Obstacle {
    pub(super) found: String,
    pub(super) remedy: String,
}

impl Identity {
    /// Determines the ids from the host's configuration.
    pub(super) fn find(config: &NamespaceConfig, layout: &Layout) -> Self {
        let slots = |first_uid, count| Slots { directory: layout.slots(), first_uid, count, preferred: 0 };
        if geteuid().is_root() {
            let users = Users::Ranges(slots(config.first_uid, config.slots));
            return Self { users, obstacle: None };
        }
        match subordinate_ids(geteuid().as_raw(), |path| Path::new(path).exists(), read) {
            Ok(loan) => {
                let slots = slots(loan.first_uid, loan.count.min(config.slots));
                Self { users: Users::Lent { slots, first_gid: loan.first_gid }, obstacle: None }
            }
            Err(obstacle) => Self { users: Users::Single, obstacle: Some(obstacle) },
        }
    }

    /// The users to try for one sandbox, in an order that differs between sandboxes to avoid collisions.
    pub(super) fn preferring(&self, number: u128) -> Users {
        let mut users = self.users.clone();
        match &mut users {
            Users::Ranges(slots) | Users::Lent { slots, .. } => {
                slots.preferred = u32::try_from(number % u128::from(slots.count.max(1))).unwrap_or(0);
            }
            Users::Single => {}
        }
        users
    }

    /// Who owns the agent's directories on disks and in images.
    pub(super) fn owners(&self) -> Owners {
        match self.users {
            Users::Ranges(_) => Owners::AsInside,
            Users::Lent { .. } | Users::Single => Owners::Server,
        }
    }
}

/// The name of the user that runs the server.
pub(super) fn own_name() -> Option<String> {
    user_name(&read(PASSWD), geteuid().as_raw()).map(String::from)
}

#[derive(Debug, PartialEq, Eq)]
struct SubordinateIds {
    first_uid: u32,
    first_gid: u32,
    count: u32,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The user's subordinate ids on this host.
fn subordinate_ids(
    uid: u32,
    exists: impl Fn(&str) -> bool,
    read: impl Fn(&str) -> String,
) -> Result<SubordinateIds, Obstacle> {
    if let Some(missing) = ID_MAP_PROGRAMS.iter().find(|path| !exists(path)) {
        let found = format!("{missing} is missing");
        return Err(Obstacle { found, remedy: packages::install("uidmap", "shadow-utils") });
    }
    let passwd = read(PASSWD);
    let name = user_name(&passwd, uid);
    let range = |path: &str| {
        range_of(&read(path), uid, name).ok_or_else(|| {
            let user = name.map_or_else(|| uid.to_string(), String::from);
            let first = free_range(&[read(SUBUID_FILE), read(SUBGID_FILE)]);
            let range = format!("{first}-{}", first.saturating_add(SUBORDINATE_ID_COUNT - 1));
            Obstacle {
                found: format!("{path} assigns no subordinate ids to {user}"),
                remedy: format!("usermod --add-subuids {range} --add-subgids {range} {user}"),
            }
        })
    };
    let ((first_uid, uids), (first_gid, gids)) = (range(SUBUID_FILE)?, range(SUBGID_FILE)?);
    Ok(SubordinateIds { first_uid, first_gid, count: uids.min(gids) })
}

fn user_name(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

/// The first range of the usual size that is not assigned to anyone in these files: two users with the same ids
/// could kill each other's processes.
fn free_range(files: &[String]) -> u32 {
    let ranges = files.iter().flat_map(|text| text.lines()).filter_map(|line| {
        let mut fields = line.trim().split(':').skip(1);
        let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((first, first.saturating_add(count)))
    });
    let mut taken: Vec<(u32, u32)> = ranges.collect();
    taken.sort_unstable();
    taken.into_iter().fold(FIRST_SUBORDINATE_ID, |free, (first, end)| {
        let overlaps = first < free.saturating_add(SUBORDINATE_ID_COUNT) && end > free;
        if overlaps { end } else { free }
    })
}

/// The first range of a user, which may be listed by name or by uid.
fn range_of(text: &str, uid: u32, name: Option<&str>) -> Option<(u32, u32)> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let user = fields.next()?;
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let is_his = name == Some(user) || user.parse() == Ok(uid);
        (is_his && count > 0).then_some((first, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(path: &str) -> String {
        match path {
            PASSWD => "root:x:0:0::/root:/bin/sh\nann:x:1001:1001::/home/ann:/bin/sh\n",
            SUBUID_FILE => "bob:100000:65536\nann:165536:65536\n",
            _ => "1001:300000:1000\n",
        }
        .into()
    }

    #[test]
    fn subordinate_ids_are_found_by_name_and_by_uid() {
        let loan = subordinate_ids(1001, |_| true, files).unwrap();
        assert_eq!(loan, SubordinateIds { first_uid: 165_536, first_gid: 300_000, count: 1000 });
    }

    #[test]
    fn missing_configuration_is_reported_with_a_command() {
        let obstacle = subordinate_ids(1001, |path| !path.ends_with("newgidmap"), files).unwrap_err();
        assert!(obstacle.found.contains("newgidmap") && obstacle.remedy.contains(" install "));
        let obstacle = subordinate_ids(1002, |_| true, files).unwrap_err();
        // The ranges of bob and ann end at 231071, those of the group file at 301000.
        let command = "usermod --add-subuids 231072-296607 --add-subgids 231072-296607 1002";
        assert!(obstacle.found.contains(SUBUID_FILE) && obstacle.remedy == command, "{obstacle:?}");
    }

    #[test]
    fn suggested_subordinate_ids_are_unassigned() {
        let first =
            |texts: &[&str]| free_range(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(first(&["", ""]), 100_000);
        assert_eq!(first(&["b:165536:65536\na:100000:65536\n", ""]), 231_072);
        assert_eq!(first(&["a:100000:65536\n", "a:120000:100000\nnonsense\n"]), 220_000);
        assert_eq!(first(&["a:600000:65536\nb:1000:10\n", ""]), 100_000);
        assert_eq!(first(&["a:110000:1000\nb:150000:10\n", "c:170000:5\n"]), 170_005);
    }
}
