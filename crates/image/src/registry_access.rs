//! Access to package registries during a build: the same as the host's. None of it stays in the image.
//!
//! Mirrors and proxies come from the host's apt configuration; certificates and pip and npm settings come from the
//! caller.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build_root;

/// The image's own Debian sources, the same for every user.
const IMAGE_SOURCES: &str = include_str!("../../../image/files/etc/apt/sources.list.d/debian.sources");
/// The host's apt settings that concern access to mirrors.
const APT_SETTINGS: [&str; 5] = [
    "Acquire::http",
    "Acquire::https",
    "Acquire::Retries",
    "Acquire::ForceIPv",
    "Acquire::Check-Valid-Until",
];
const HOST_NAME_SERVERS: &str = "/etc/resolv.conf";
const INSIDE: &str = "/run/caisson-build/access";

/// How the host accesses package registries.
#[derive(Debug, Clone, Default)]
pub struct RegistryAccess {
    /// Environment variables for programs of a build: proxies, and settings of pip and npm.
    pub variables: BTreeMap<String, String>,
    /// A bundle of certificates (PEM) that this host trusts.
    pub certificates: Option<PathBuf>,
    /// The user's pip configuration file.
    pub pip_settings: Option<PathBuf>,
    /// The user's npm configuration file.
    pub npm_settings: Option<PathBuf>,
    /// A Debian mirror; by default the host's mirror, or else the public one.
    pub mirror: Option<String>,
}

/// Debian mirrors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Mirrors {
    pub(crate) main: String,
    pub(crate) security: String,
}

impl Mirrors {
    /// Picks the mirrors from a list of sources (URLs and suites); `otherwise` fills in those that are missing.
    fn from_sources(sources: &[(String, String)], otherwise: Self) -> Self {
        let is_debian = |uri: &str| uri.starts_with("http") && uri.contains("debian");
        let find = |wanted: &dyn Fn(&str) -> bool| {
            sources.iter().find(|(uri, suite)| is_debian(uri) && wanted(suite)).map(|(uri, _)| uri.clone())
        };
        Self {
            main: find(&|suite| !suite.contains(['-', '/'])).unwrap_or(otherwise.main),
            security: find(&|suite| suite.ends_with("-security")).unwrap_or(otherwise.security),
        }
    }
}

impl RegistryAccess {
    pub(crate) fn mirrors(&self) -> Mirrors {
        let found = find_mirrors(Path::new("/etc"));
        Mirrors { main: self.mirror.clone().unwrap_or(found.main), security: found.security }
    }

    /// Writes files into a folder that is mounted inside, and returns the environment variables for programs there.
    pub(crate) fn prepare(&self, folder: &Path) -> io::Result<BTreeMap<String, String>> {
        fs::create_dir_all(folder)?;
        let mut variables = self.variables.clone();
        let mut apt = apt_settings();
        if let Some(bundle) = &self.certificates {
            fs::copy(bundle, folder.join("ca.crt"))?;
            let inside = format!("{INSIDE}/ca.crt");
            for name in
                ["PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "npm_config_cafile", "CURL_CA_BUNDLE"]
            {
                variables.insert(name.into(), inside.clone());
            }
            apt += &format!("Acquire::https::CaInfo \"{inside}\";\n");
        }
        fs::write(folder.join("apt.conf"), apt)?;
        // A copy, because writes by a stage must not reach the host.
        if let Ok(servers) = fs::read(HOST_NAME_SERVERS) {
            fs::write(folder.join("resolv.conf"), servers)?;
        }
        variables.insert("APT_CONFIG".into(), format!("{INSIDE}/apt.conf"));
        let settings = [
            (&self.pip_settings, "pip.conf", "PIP_CONFIG_FILE"),
            (&self.npm_settings, "npmrc", "npm_config_userconfig"),
        ];
        for (source, name, variable) in settings {
            if let Some(source) = source {
                fs::copy(source, folder.join(name))?;
                variables.insert(variable.into(), format!("{INSIDE}/{name}"));
            }
        }
        let Mirrors { main, security } = self.mirrors();
        variables.insert("CAISSON_MIRROR".into(), main);
        variables.insert("CAISSON_SECURITY_MIRROR".into(), security);
        Ok(variables)
    }
}

/// The host's apt settings that concern access to mirrors.
fn apt_settings() -> String {
    let Some(program) = build_root::find_program("apt-config") else { return String::new() };
    let Ok(output) = Command::new(program).arg("dump").output() else { return String::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    keep_settings(&text)
}

fn keep_settings(dump: &str) -> String {
    let is_kept = |line: &&str| {
        let is_empty = line.ends_with(" \"\";");
        // Certificates and keys are files of the host that do not exist inside.
        let names_file = ["CaInfo", "SslCert", "SslKey", "ProxyAutoDetect", "Proxy-Auto-Detect"];
        APT_SETTINGS.iter().any(|name| line.starts_with(name))
            && !is_empty
            && !names_file.iter().any(|name| line.contains(name))
    };
    dump.lines().filter(is_kept).map(|line| format!("{line}\n")).collect()
}

/// The mirrors that a Debian host uses; the public mirrors on other hosts.
fn find_mirrors(etc: &Path) -> Mirrors {
    let own = Mirrors::from_sources(&read_stanzas(IMAGE_SOURCES), Mirrors::default());
    let system = fs::read_to_string(etc.join("os-release")).unwrap_or_default();
    if !system.lines().any(|line| line == "ID=debian") {
        return own;
    }
    let mut files = vec![etc.join("apt/sources.list")];
    if let Ok(entries) = fs::read_dir(etc.join("apt/sources.list.d")) {
        let mut more: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        more.sort();
        files.extend(more);
    }
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => found.extend(read_stanzas(&text)),
            Some("list") => found.extend(read_lines(&text)),
            _ => {}
        }
    }
    Mirrors::from_sources(&found, own)
}

/// Parses `deb URI SUITE ...` lines, with options in brackets.
fn read_lines(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("deb ") else { continue };
        let rest = rest.trim();
        let rest =
            if rest.starts_with('[') { rest.split_once(']').map_or("", |(_, rest)| rest) } else { rest };
        let mut words = rest.split_whitespace();
        if let (Some(uri), Some(suite)) = (words.next(), words.next()) {
            found.push((uri.trim_end_matches('/').to_owned(), suite.to_owned()));
        }
    }
    found
}

/// Parses stanzas with `URIs:` and `Suites:`.
fn read_stanzas(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| -> Vec<String> {
            let line = stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
        };
        if field("Enabled") == ["no"] {
            continue;
        }
        for uri in field("URIs") {
            for suite in field("Suites") {
                found.push((uri.trim_end_matches('/').to_owned(), suite));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etc(system: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let etc = tempfile::tempdir().unwrap();
        fs::create_dir_all(etc.path().join("apt/sources.list.d")).unwrap();
        fs::write(etc.path().join("os-release"), system).unwrap();
        for (name, text) in files {
            fs::write(etc.path().join("apt").join(name), text).unwrap();
        }
        etc
    }

    #[test]
    fn the_mirrors_of_a_debian_host_are_used() {
        let old = "# comment\ndeb [arch=amd64] http://mirror.example/debian/ bookworm main\ndeb http://mirror.example/debian-security bookworm-security main\n";
        let new = "Types: deb\nURIs: https://other.example/debian\nSuites: trixie trixie-updates\n\nURIs: https://other.example/debian-security/\nSuites: trixie-security\n";
        let expected = |host: &str, scheme: &str| Mirrors {
            main: format!("{scheme}://{host}/debian"),
            security: format!("{scheme}://{host}/debian-security"),
        };
        let place = etc("ID=debian\n", &[("sources.list", old)]);
        assert_eq!(find_mirrors(place.path()), expected("mirror.example", "http"));
        let place = etc("ID=debian\n", &[("sources.list.d/debian.sources", new)]);
        assert_eq!(find_mirrors(place.path()), expected("other.example", "https"));
        let place = etc("ID=ubuntu\n", &[("sources.list", old)]);
        let own = find_mirrors(place.path());
        assert!(own.main.ends_with("/debian") && !own.main.contains("mirror.example"), "{own:?}");
        assert_eq!(own.security, format!("{}-security", own.main));
    }

    #[test]
    fn only_mirror_access_settings_are_taken_from_the_hosts_apt() {
        let dump = "APT::Install-Recommends \"0\";\nAcquire::http::Proxy \"http://p:3128\";\nAcquire::https::CaInfo \"/x\";\nAcquire::http \"\";\n";
        assert_eq!(keep_settings(dump), "Acquire::http::Proxy \"http://p:3128\";\n");
    }

    #[test]
    fn certificates_are_configured_for_every_program_outside_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = folder.path().join("bundle.pem");
        fs::write(&bundle, "PEM").unwrap();
        let access = RegistryAccess { certificates: Some(bundle), ..RegistryAccess::default() };
        let variables = access.prepare(&folder.path().join("access")).unwrap();
        assert!(
            variables["PIP_CERT"].starts_with("/run/") && variables["npm_config_cafile"].starts_with("/run/")
        );
        assert!(fs::read_to_string(folder.path().join("access/apt.conf")).unwrap().contains("CaInfo"));
    }
}
