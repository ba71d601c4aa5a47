//! Finds files that are open for writing. fanotify reports a write when the file is closed, and some files are still
//! open when the sandbox ends.

use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// The access mode bits of an open file's flags.
const ACCESS: u32 = libc::O_ACCMODE as u32;
const ONLY_A_PATH: u32 = libc::O_PATH as u32;

/// How much of a descriptor's `fdinfo` is read: the flags come first, and for some kinds the text is unbounded.
const ABOUT_BYTES: u64 = 256;

/// Calls `tell` with process id and path for every file that a process of the sandbox, except the guest itself, has
/// open for writing. It reports one file at a time because there may be very many.
pub(super) fn for_each_open_for_writing(guest: i32, mut tell: impl FnMut(i32, &[u8])) {
    for pid in descendants(guest).unwrap_or_else(|| processes_in_pid_namespace(guest)) {
        files_open_for_writing(pid, |path| tell(pid, path));
    }
}

/// All descendants of the guest; orphans become children of the guest. `None` if the kernel does not list children.
fn descendants(guest: i32) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    let mut next = vec![guest];
    while let Some(pid) = next.pop() {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = match fs::read_to_string(task.path().join("children")) {
                Ok(children) => children,
                Err(_) if pid == guest => return None,
                // The process has exited in the meantime.
                Err(_) => continue,
            };
            let children: Vec<i32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
            found.extend(&children);
            next.extend(children);
        }
    }
    Some(found)
}

/// The processes in the guest's pid namespace, found by scanning all processes of the host.
fn processes_in_pid_namespace(guest: i32) -> Vec<i32> {
    let world = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(theirs) = world(guest) else { return Vec::new() };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(|pid| *pid != guest && world(*pid).as_ref() == Some(&theirs)).collect()
}

fn files_open_for_writing(pid: i32, mut tell: impl FnMut(&[u8])) {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let path = |entry: fs::DirEntry| {
        let number = entry.file_name();
        let mut about = String::new();
        let file = fs::File::open(format!("/proc/{pid}/fdinfo/{}", number.to_str()?)).ok()?;
        file.take(ABOUT_BYTES).read_to_string(&mut about).ok()?;
        // Ignores anything that is not on a disk or no longer has a name.
        let file = fs::metadata(entry.path()).ok()?;
        let path = fs::read_link(entry.path()).ok()?;
        let path = path.as_os_str().as_bytes();
        let is_file =
            file.is_file() && file.nlink() > 0 && path.starts_with(b"/") && !path.starts_with(b"/proc/");
        (is_file && is_for_writing(&about)).then(|| path.to_vec())
    };
    descriptors.filter_map(path).for_each(|path| tell(&path));
}

fn is_for_writing(about: &str) -> bool {
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or_default();
    flags & ACCESS != 0 && flags & ONLY_A_PATH == 0
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn write_access_is_read_from_fdinfo_flags() {
        assert!(is_for_writing("pos:\t0\nflags:\t0100001\nmnt_id:\t9\n"));
        assert!(is_for_writing("flags:\t02\n"));
        assert!(!is_for_writing("flags:\t0100000\n"));
        assert!(!is_for_writing("flags:\t010000001\n"), "a mere path");
        assert!(!is_for_writing("nothing"));
    }

    #[test]
    fn all_descendants_are_found() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let grandchild = || {
            let of_child = descendants(pid).unwrap_or_default();
            (of_child.len() == 1).then(|| of_child[0])
        };
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let sleeping = loop {
            if let Some(found) = grandchild() {
                break found;
            }
            assert!(std::time::Instant::now() < end, "no grandchild");
            std::thread::yield_now();
        };
        let all = descendants(own).unwrap();
        assert!(all.contains(&pid) && all.contains(&sleeping), "{all:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(sleeping).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
    }

    #[test]
    fn a_file_that_is_open_for_writing_is_found_and_others_are_not() {
        let folder = std::env::temp_dir().join(format!("caisson-open-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (written, read, removed) = (folder.join("written"), folder.join("read"), folder.join("removed"));
        let mut open = fs::File::create(&written).unwrap();
        open.write_all(b"x").unwrap();
        fs::write(&read, "x").unwrap();
        let _reading = fs::File::open(&read).unwrap();
        let _gone = fs::File::create(&removed).unwrap();
        fs::remove_file(&removed).unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let mut found = Vec::new();
        files_open_for_writing(pid, |path| found.push(path.to_vec()));
        let has = |path: &std::path::Path| found.iter().any(|it| it == path.as_os_str().as_bytes());
        assert!(has(&written) && !has(&read) && !has(&removed));
        fs::remove_dir_all(folder).unwrap();
    }
}
