//! Probes once what every sandbox needs. The values in `/proc/sys` do not tell: some hosts let anyone create a
//! namespace and refuse every mount in it.

use std::fs;
use std::path::Path;

use launcher::LaunchError;
use launcher::spec::{Probe, Users};

use super::users::Obstacle;
use super::{Inner, UseNamespaces, cleanup, launcher_process};

/// Non-zero if AppArmor denies namespaces to unprivileged users, except to programs whose profile allows them.
const RESTRICTED_BY_APPARMOR: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
/// The profile of this process.
const OWN_PROFILE: &str = "/proc/self/attr/current";
/// The shipped profile that allows them: its name, where the package installs it (active where AppArmor understands
/// it, and as a copy to install), the program it covers, and its path in the repository.
const PROFILE: &str = "caisson";
const INSTALLED_PROFILE: &str = "/etc/apparmor.d/caisson";
const PACKAGED_PROFILE: &str = "/usr/share/caisson/apparmor/caisson";
const INSTALLED_PROGRAM: &str = "/usr/bin/caisson";
const SHIPPED_PROFILE: &str = "deploy/apparmor/caisson";
/// The remedy if the profile does not help.
const LIFT_RESTRICTION: &str = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0";

/// Sysctls that deny namespaces to unprivileged users: path, denying value, and the command that changes it.
const SYSCTLS: [(&str, &str, &str); 2] = [
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
];
/// Files that exist only in containers.
const CONTAINER_MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

/// The same as in deploy/compose/compose.yaml. The package includes the profile too.
const CONTAINER_REMEDY: &str = "start the container with --cap-drop ALL --cap-add SYS_ADMIN --cap-add SETUID \
    --cap-add SETGID --cap-add CHOWN --cap-add DAC_OVERRIDE --cap-add FOWNER --cap-add KILL \
    --security-opt seccomp=deploy/compose/seccomp.json (of the package: /usr/share/doc/caisson/compose/seccomp.json) \
    --security-opt systempaths=unconfined --security-opt apparmor=unconfined";

/// Whether namespaces can be created and file systems mounted in them. Probed once.
pub(super) fn namespaces(inner: &Inner) -> &Result<(), Obstacle> {
    inner.namespaces.get_or_init(|| match inner.config.namespaces {
        UseNamespaces::WherePossible => {
            let program = std::env::current_exe().unwrap_or_default();
            attempt(inner).map_err(|error| explain(&error, &inner.identity.users, &program, read))
        }
        UseNamespaces::Never => {
            let (found, remedy) = ("disabled".into(), "allow the server to use them".into());
            Err(Obstacle { found, remedy })
        }
    })
}

/// The result of a probe that has already failed; does not probe.
pub(super) fn known_obstacle(inner: &Inner) -> Option<&Obstacle> {
    inner.namespaces.get().and_then(|tried| tried.as_ref().err())
}

fn attempt(inner: &Inner) -> Result<(), LaunchError> {
    let directory = inner.layout.trash().join(format!("probe-{}", std::process::id()));
    let order = Probe { users: inner.identity.users.clone(), directory: directory.clone() };
    let answer = launcher_process::run_once(&inner.config.launcher, "--probe", &order);
    cleanup::discard_probe(inner, &directory);
    match answer {
        Ok(None) => Ok(()),
        Ok(Some(complaint)) => Err(complaint),
        Err(error) => Err(LaunchError::new("starting the launcher", error)),
    }
}

/// Reads a file of the host, if it exists.
fn read(path: &str) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// What is in the way, and the one command that fixes it. `read` returns the content of files of the host.
fn explain(
    error: &LaunchError,
    users: &Users,
    program: &Path,
    read: impl Fn(&str) -> Option<String>,
) -> Obstacle {
    let found = format!("{}: {}", error.step, error.source);
    if read(RESTRICTED_BY_APPARMOR).is_some_and(|text| text.trim() == "1") {
        return Obstacle { found, remedy: profile_command(program, read) };
    }
    let set = |(path, value, _): &&(&str, &str, &str)| read(path).is_some_and(|text| text.trim() == *value);
    if let Some((_, _, command)) = SYSCTLS.iter().find(set) {
        return Obstacle { found, remedy: (*command).into() };
    }
    let in_container = CONTAINER_MARKS.iter().any(|mark| read(mark).is_some());
    let remedy = match users {
        _ if in_container => CONTAINER_REMEDY,
        Users::Lent { .. } => "chmod u+s /usr/bin/newuidmap /usr/bin/newgidmap",
        Users::Ranges(_) | Users::Single => "use a kernel with CONFIG_USER_NS and overlayfs",
    };
    Obstacle { found, remedy: remedy.into() }
}

/// The command that loads the profile which lets this program create namespaces. If the program is not where the
/// package installs it, the profile must be adapted to its path.
fn profile_command(program: &Path, read: impl Fn(&str) -> Option<String>) -> String {
    let is_under_it = read(OWN_PROFILE).is_some_and(|own| own.split_whitespace().next() == Some(PROFILE));
    if is_under_it {
        return LIFT_RESTRICTION.into();
    }
    let found = [INSTALLED_PROFILE, PACKAGED_PROFILE].into_iter().find(|file| read(file).is_some());
    if program == Path::new(INSTALLED_PROGRAM)
        && let Some(profile) = found
    {
        return format!("apparmor_parser -r {profile}");
    }
    let profile = found.unwrap_or(SHIPPED_PROFILE);
    format!("sed 's|{INSTALLED_PROGRAM}|{}|' {profile} | sudo apparmor_parser -r", program.display())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// The advice on a host that has only these files.
    fn advised(users: &Users, files: &[(&str, &str)]) -> String {
        advised_for(INSTALLED_PROGRAM, users, files)
    }

    /// The advice for a program at another path.
    fn advised_for(program: &str, users: &Users, files: &[(&str, &str)]) -> String {
        let refusal = io::Error::from_raw_os_error(1);
        let error = LaunchError::new("making namespaces", refusal);
        let read = |path: &str| {
            let (_, text) = files.iter().find(|(name, _)| *name == path)?;
            Some(format!("{text}\n"))
        };
        let obstacle = explain(&error, users, Path::new(program), read);
        assert!(
            obstacle.found.starts_with("making namespaces: Operation not permitted"),
            "{}",
            obstacle.found
        );
        obstacle.remedy
    }

    #[test]
    fn apparmor_restriction_suggests_the_shipped_profile() {
        let on = (RESTRICTED_BY_APPARMOR, "1");
        let installed = (INSTALLED_PROFILE, "profile");
        let remedy = advised(&Users::Single, &[on, installed]);
        assert_eq!(remedy, "apparmor_parser -r /etc/apparmor.d/caisson");
        let remedy = advised(&Users::Single, &[on, (PACKAGED_PROFILE, "profile")]);
        assert_eq!(remedy, "apparmor_parser -r /usr/share/caisson/apparmor/caisson");
        let remedy = advised_for("/opt/caisson", &Users::Single, &[on]);
        let command =
            "sed 's|/usr/bin/caisson|/opt/caisson|' deploy/apparmor/caisson | sudo apparmor_parser -r";
        assert_eq!(remedy, command);
        // An active profile cannot be what is missing.
        let remedy = advised(&Users::Single, &[on, installed, (OWN_PROFILE, "caisson (unconfined)")]);
        assert_eq!(remedy, LIFT_RESTRICTION);
        assert!(!advised(&Users::Single, &[(RESTRICTED_BY_APPARMOR, "0")]).contains("apparmor"));
    }

    #[test]
    fn root_only_user_namespaces_suggest_the_sysctl() {
        let switch = "/proc/sys/kernel/unprivileged_userns_clone";
        let remedy = advised(&Users::Single, &[(switch, "0")]);
        assert_eq!(remedy, "sysctl -w kernel.unprivileged_userns_clone=1");
        assert!(!advised(&Users::Single, &[(switch, "1")]).contains("sysctl"));
    }

    #[test]
    fn disabled_user_namespaces_suggest_the_sysctl() {
        let switch = "/proc/sys/user/max_user_namespaces";
        assert_eq!(advised(&Users::Single, &[(switch, "0")]), "sysctl -w user.max_user_namespaces=15000");
        assert!(!advised(&Users::Single, &[(switch, "127632")]).contains("sysctl"));
    }

    #[test]
    fn sysctl_advice_precedes_container_advice_and_the_rest() {
        let switch = ("/proc/sys/user/max_user_namespaces", "0");
        for mark in CONTAINER_MARKS {
            assert_eq!(advised(&Users::Single, &[(mark, "")]), CONTAINER_REMEDY);
            assert!(advised(&Users::Single, &[(mark, ""), switch]).starts_with("sysctl"));
        }
        assert!(advised(&Users::Single, &[]).contains("CONFIG_USER_NS"));
    }
}
