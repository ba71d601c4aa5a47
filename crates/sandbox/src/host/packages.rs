//! Package installation commands for this host's distribution, so that advice can be pasted into its shell.

use std::fs;

const OS_RELEASE: &str = "/etc/os-release";

/// The command that installs a package, given its name on Debian-like and on Fedora-like distributions.
pub(crate) fn install(on_debian: &str, on_fedora: &str) -> String {
    install_on(&fs::read_to_string(OS_RELEASE).unwrap_or_default(), on_debian, on_fedora)
}

fn install_on(os_release: &str, on_debian: &str, on_fedora: &str) -> String {
    if is_like_fedora(os_release) {
        format!("dnf install {on_fedora}")
    } else {
        format!("apt-get install {on_debian}")
    }
}

/// Whether the distribution uses dnf, by its id or the ids it says it is like.
fn is_like_fedora(os_release: &str) -> bool {
    let fields = os_release.lines().filter_map(|line| line.trim().split_once('='));
    fields
        .filter(|(name, _)| ["ID", "ID_LIKE"].contains(name))
        .flat_map(|(_, value)| value.trim_matches(['"', '\'']).split_whitespace())
        .any(|id| ["fedora", "rhel", "centos"].contains(&id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn install_command_matches_the_distribution() {
        let fedora = "NAME=\"Fedora Linux\"\nID=fedora\n";
        let rocky = "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n";
        let ubuntu = "ID=ubuntu\nID_LIKE=debian\nNAME=\"not fedora\"\n";
        let advised = |text| install_on(text, "uidmap", "shadow-utils");
        assert_eq!([fedora, rocky].map(advised), ["dnf install shadow-utils"; 2]);
        assert_eq!([ubuntu, ""].map(advised), ["apt-get install uidmap"; 2]);
    }
}
