//! Determines access to package registries from environment variables and the user's files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::ImageError;
use crate::registry_access::RegistryAccess;

/// Common locations of the host's certificate bundle.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Allowed prefixes of a mirror URL.
const MIRROR_SCHEMES: [&str; 3] = ["http://", "https://", "file:///"];
/// Proxy variables; most programs also accept them in upper case.
const PROXIES: [&str; 5] = ["http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"];
/// Settings of pip and npm that say where packages are and how long to wait for them.
const SETTINGS: [&str; 12] = [
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_PROXY",
    "PIP_TIMEOUT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_RETRIES",
    "npm_config_registry",
    "npm_config_proxy",
    "npm_config_https_proxy",
    "npm_config_noproxy",
    "npm_config_strict_ssl",
];

impl RegistryAccess {
    /// This user's access to registries. `mirror` is the value of the command-line flag; `variable` reads the
    /// environment.
    ///
    /// # Errors
    /// The mirror is not a valid URL.
    pub fn from_environment(
        mirror: Option<String>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ImageError> {
        if let Some(mirror) = &mirror {
            check_mirror("--mirror", mirror)?;
        }
        let access = access_of(mirror, variable, |path| path.is_file());
        if let Some(mirror) = &access.mirror {
            check_mirror("CAISSON_MIRROR", mirror)?;
        }
        Ok(access)
    }
}

fn check_mirror(given_by: &'static str, mirror: &str) -> Result<(), ImageError> {
    let rest = MIRROR_SCHEMES.iter().find_map(|scheme| mirror.strip_prefix(scheme));
    if rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace)) {
        return Ok(());
    }
    Err(ImageError::BadMirror { given_by, mirror: mirror.to_owned() })
}

fn access_of(
    mirror: Option<String>,
    variable: impl Fn(&str) -> Option<String>,
    exists: impl Fn(&Path) -> bool,
) -> RegistryAccess {
    let mut variables = BTreeMap::new();
    let capitals = PROXIES.map(str::to_uppercase);
    for name in PROXIES.into_iter().chain(capitals.iter().map(String::as_str)).chain(SETTINGS) {
        if let Some(value) = variable(name) {
            variables.insert(name.to_owned(), value);
        }
    }
    let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
    let settings = variable("XDG_CONFIG_HOME").map_or_else(|| home.join(".config"), PathBuf::from);
    let first = |paths: Vec<PathBuf>| paths.into_iter().find(|path| path.is_absolute() && exists(path));
    let named = |name: &str| variable(name).map(PathBuf::from).into_iter();
    RegistryAccess {
        variables,
        certificates: first(named("SSL_CERT_FILE").chain(BUNDLES.map(PathBuf::from)).collect()),
        pip_settings: first(
            named("PIP_CONFIG_FILE")
                .chain([settings.join("pip/pip.conf"), home.join(".pip/pip.conf"), "/etc/pip.conf".into()])
                .collect(),
        ),
        npm_settings: first(
            named("npm_config_userconfig").chain([home.join(".npmrc"), "/etc/npmrc".into()]).collect(),
        ),
        mirror: mirror.or_else(|| variable("CAISSON_MIRROR")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_mirror_is_rejected_with_an_example() {
        for good in ["http://deb.example/debian", "https://m/", "file:///srv/debian"] {
            assert!(check_mirror("--mirror", good).is_ok(), "{good}");
        }
        for bad in ["not-a-url", "http://", "", "http://a b", "ftp://x/"] {
            let error = check_mirror("--mirror", bad).unwrap_err().to_string();
            assert!(error.starts_with("--mirror: ") && error.contains("http://mirror.example"), "{error}");
        }
    }

    #[test]
    fn proxies_settings_and_files_of_the_user_are_found() {
        let variable = |name: &str| match name {
            "HOME" => Some("/home/ann".to_owned()),
            "https_proxy" => Some("http://proxy:3128".to_owned()),
            "PIP_INDEX_URL" => Some("https://index.example".to_owned()),
            "SECRET" => Some("x".to_owned()),
            _ => None,
        };
        let there = ["/home/ann/.npmrc", "/etc/pip.conf", "/etc/ssl/cert.pem"];
        let access = access_of(None, variable, |path| there.iter().any(|known| Path::new(known) == path));
        assert_eq!(access.variables.len(), 2, "{:?}", access.variables);
        assert_eq!(access.npm_settings, Some("/home/ann/.npmrc".into()));
        assert_eq!(access.pip_settings, Some("/etc/pip.conf".into()));
        assert_eq!(access.certificates, Some("/etc/ssl/cert.pem".into()));
    }
}
