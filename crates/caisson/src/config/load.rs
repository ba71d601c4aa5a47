//! Loads the configuration file and explains what is wrong with it.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};

use super::check;
use super::checked::Config;
use super::file::{self, RawConfig};
use crate::arguments::HostArguments;

impl Config {
    /// Loads and checks the configuration of a command that does not listen. The error lists all problems, each with
    /// its line.
    pub(crate) fn load(
        arguments: &HostArguments,
        listen_flags: &[SocketAddr],
        insecure_flag: bool,
    ) -> Result<Self> {
        let loaded = Self::read(arguments, listen_flags, insecure_flag);
        // Whether the server may listen on its addresses does not matter here.
        loaded.map_err(|error| check::explain(&error, arguments, listen_flags, true))
    }

    /// Like [`Config::load`], for a server that listens: without API keys it must not be reachable by accident.
    pub(crate) fn load_for_server(
        arguments: &HostArguments,
        listen_flags: &[SocketAddr],
        insecure_flag: bool,
    ) -> Result<Self> {
        let loaded = Self::read(arguments, listen_flags, insecure_flag)
            .and_then(|config| config.check_reach().map(|()| config));
        loaded.map_err(|error| check::explain(&error, arguments, listen_flags, insecure_flag))
    }

    fn read(arguments: &HostArguments, listen_flags: &[SocketAddr], insecure_flag: bool) -> Result<Self> {
        let raw = read_file(arguments.config.as_deref())?;
        Self::from_raw(raw, arguments, listen_flags, insecure_flag)
    }
}

fn read_file(flag: Option<&Path>) -> Result<RawConfig> {
    let Some(path) = file::path(flag) else { return Ok(RawConfig::default()) };
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("reading the configuration {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("in the configuration {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::example::EXAMPLE;

    fn arguments(file: &Path) -> HostArguments {
        HostArguments { config: Some(file.to_owned()), ..HostArguments::default() }
    }

    fn load(text: &str) -> Result<Config> {
        load_with(text, Config::load)
    }

    fn load_for_server(text: &str) -> Result<Config> {
        load_with(text, Config::load_for_server)
    }

    fn load_with(
        text: &str,
        load: impl Fn(&HostArguments, &[SocketAddr], bool) -> Result<Config>,
    ) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("caisson.toml");
        std::fs::write(&file, text).unwrap();
        load(&arguments(&file), &[], false)
    }

    fn is_setting(line: &str) -> bool {
        line.split_once(" = ").is_some_and(|(name, _)| !name.contains(' '))
    }

    #[test]
    fn fixed_ports_are_off_by_default() {
        assert!(load("").unwrap().expose.addresses().is_empty());
        assert_eq!(load("[expose]\nvnc = 5900\n").unwrap().expose.vnc, Some(5900));
    }

    #[test]
    fn the_example_lists_every_setting_with_its_default() {
        let example = EXAMPLE;
        let plain = Config::load(&HostArguments::default(), &[], false).unwrap();
        let uncommented: String = example
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| is_setting(rest)).unwrap_or(line))
            .map(|line| format!("{line}\n"))
            .collect();
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), "a key").unwrap();
        let key = key.path().to_string_lossy();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (chain, secret) =
            (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(chain.path(), made.cert.pem()).unwrap();
        std::fs::write(secret.path(), made.signing_key.serialize_pem()).unwrap();
        let uncommented = uncommented
            .replace("/etc/caisson/tls/chain.pem", &chain.path().to_string_lossy())
            .replace("/etc/caisson/tls/key.pem", &secret.path().to_string_lossy())
            .replace("/etc/caisson/oidc.secret", &secret.path().to_string_lossy());
        let uncommented =
            uncommented.replace("/etc/caisson/model.key", &key).replace("/etc/caisson/embeddings-key", &key);
        let shown = load(&uncommented).unwrap();
        assert_eq!(shown.listen, plain.listen);
        assert_eq!(shown.jobs.defaults.limits, plain.jobs.defaults.limits);
        assert_eq!(shown.jobs.max_queued, plain.jobs.max_queued);
        assert_eq!(shown.http.max_json_bytes, plain.http.max_json_bytes);
        assert_eq!(shown.jobs.retention_age, plain.jobs.retention_age);
        assert_eq!(shown.model.connect_timeout, plain.model.connect_timeout);
        assert_eq!(shown.model.retries, plain.model.retries);
    }

    #[test]
    fn sandbox_uids_stay_below_the_highest_id() {
        let read = |text: &str| load(&format!("[namespace]\n{text}"));
        read("first_uid = 1").unwrap();
        read("first_uid = 4026531838").unwrap();
        read("first_uid = 4294901758\nslots = 1").unwrap();
        for wrong in ["first_uid = 4294967295", "first_uid = 0", "first_uid = 4026531839"] {
            let error = format!("{:#}", read(wrong).unwrap_err());
            assert!(
                error.contains("namespace.first_uid") && error.contains("between 1 and 4026531838"),
                "{error}"
            );
        }
    }

    #[test]
    fn duplicate_listen_addresses_are_refused() {
        let error = load(r#"listen = ["127.0.0.1:8105", "[::1]:8105", "127.0.0.1:8105"]"#).unwrap_err();
        assert!(
            format!("{error:#}").contains("listen: 127.0.0.1:8105 is listed more than once"),
            "{error:#}"
        );
        load(r#"listen = ["127.0.0.1:0", "127.0.0.1:0"]"#).unwrap();
    }

    #[test]
    fn job_domain_must_not_contain_the_api() {
        let read = |text: &str| load(text).map(|config| config.http.job_domain);
        let public = "public_url = \"https://caisson.example.org:8443/x\"\n";
        let good = format!("{public}job_domain = \"Jobs.example.org.\"");
        assert_eq!(read(&good).unwrap().as_deref(), Some("jobs.example.org"));
        for domain in
            ["caisson.example.org", "example.org", "org", "localhost", "10.0.0.1", "a..b", "", "a/b"]
        {
            let error = read(&format!("{public}job_domain = \"{domain}\"")).unwrap_err().to_string();
            assert!(error.contains("job_domain"), "{domain}: {error}");
        }
        assert!(read("allowed_hosts = [\"a.jobs.test\"]\njob_domain = \"jobs.test\"").is_err());
    }

    #[test]
    fn an_unknown_key_is_refused_with_file_and_line() {
        let error = format!("{:#}", load("listen = [\"127.0.0.1:8000\"]\ncolour = 1\n").unwrap_err());
        assert!(error.contains("caisson.toml:2: colour: unknown setting"), "{error}");
    }

    #[test]
    fn all_errors_are_reported_together() {
        let error = format!("{:#}", load("colour = 1\n[limits]\nmemory_mib = 1\ncpus = 0.0\n").unwrap_err());
        for expected in
            ["caisson.toml:1: colour", "caisson.toml:3: limits.memory_mib", "caisson.toml:4: limits.cpus"]
        {
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn non_loopback_listen_requires_insecure_flag() {
        for (text, line) in [
            ("listen = [\"0.0.0.0:8000\"]", "caisson.toml:1: listen: 0.0.0.0:8000 is"),
            (
                "[expose]\nlisten = [\"127.0.0.1\", \"::\"]\njupyter = 8888",
                "caisson.toml:2: expose.listen: [::]:8888 is",
            ),
        ] {
            let error = load_for_server(text).unwrap_err().to_string();
            assert!(error.contains("insecure-listen") && error.contains(line), "{error}");
            assert!(load_for_server(&format!("insecure_listen = true\n{text}")).is_ok(), "{text}");
            assert!(load(text).is_ok(), "a command that does not listen is refused: {text}");
        }
        assert!(load_for_server("[expose]\nlisten = \"0.0.0.0\"").is_ok(), "no port is exposed");
    }

    #[test]
    fn a_server_with_public_fixed_ports_accepts_their_host_names() {
        let hosts = |text: &str| load(text).unwrap().http.allowed_hosts;
        assert_eq!(hosts("[expose]\nnovnc = 6080"), [""; 0]);
        assert_eq!(hosts("[expose]\nlisten = \"0.0.0.0\"\nnovnc = 6080"), ["*"]);
        let named = "allowed_hosts = [\"caisson.test\"]\n[expose]\nlisten = \"0.0.0.0\"\nnovnc = 6080";
        assert_eq!(hosts(named), ["caisson.test"]);
    }

    #[test]
    fn out_of_range_values_are_reported_by_setting() {
        for (text, key) in [
            ("[limits]\nmemory_mib = 1", "limits.memory_mib"),
            ("[limits]\ncpus = 0.0", "limits.cpus"),
            ("[jobs]\nmax_running = 0", "jobs.max_running"),
            ("[http]\nmax_json_mib = 0", "http.max_json_mib"),
            ("[http]\nmax_connections_per_address = 0", "http.max_connections_per_address"),
            ("[http]\nmax_connections = 8\nreserved_connections = 8", "http.reserved_connections"),
            ("[namespace]\ncgroup_parent = \"a/b\"", "namespace.cgroup_parent"),
            ("[docker]\nhost = \"/var/run/docker.sock\"", "docker.host"),
            ("[docker]\nimage = \"-v\"", "docker.image"),
            ("[docker]\nimages = { host = \"debian\" }", "docker.images"),
            ("[docker]\nruntime = \"\"", "docker.runtime"),
        ] {
            let error = format!("{:#}", load(text).unwrap_err());
            assert!(error.contains(key), "{text}: {error}");
        }
    }
}
