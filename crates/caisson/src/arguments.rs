//! Arguments that several commands share: the server, the output format, limits, the host.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

/// How to reach the server.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServerArguments {
    /// Server URL [default: CAISSON_URL, or http://127.0.0.1:8000].
    #[arg(long, value_name = "URL", global = true, help_heading = "Server options")]
    pub(crate) url: Option<String>,
    /// Certificate authority of an https:// server, as PEM [default: CAISSON_CA, or those of this host].
    #[arg(long, value_name = "FILE", global = true, help_heading = "Server options")]
    pub(crate) ca_file: Option<PathBuf>,
    /// File with the API key [default: the key in CAISSON_KEY].
    #[arg(long, value_name = "FILE", global = true, help_heading = "Server options")]
    pub(crate) key_file: Option<PathBuf>,
}

/// The output format.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArguments {
    /// Print JSON: one document, or one line per event.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Settings of a new sandbox.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LimitArguments {
    /// Image of the sandbox [default: the server's default image].
    #[arg(long, value_name = "IMAGE", help_heading = "Sandbox options")]
    pub(crate) image: Option<String>,
    /// Memory limit, such as 512m or 2g.
    #[arg(long, value_name = "SIZE", value_parser = parse_mebibytes, help_heading = "Sandbox options")]
    pub(crate) memory: Option<u64>,
    /// Number of CPUs, such as 0.5 or 4.
    #[arg(long, value_name = "NUMBER", value_parser = parse_number, help_heading = "Sandbox options")]
    pub(crate) cpus: Option<f64>,
    /// Disk limit, such as 512m or 10g.
    #[arg(long, value_name = "SIZE", value_parser = parse_mebibytes, help_heading = "Sandbox options")]
    pub(crate) disk: Option<u64>,
    /// Egress policy: off, packages, open, learn (allow all and record rules), or hosts such as example.org,*.example.org:8443.
    #[arg(long, value_name = "POLICY", value_parser = parse_egress, help_heading = "Sandbox options")]
    pub(crate) egress: Option<String>,
    /// Seconds that a refused connection waits for approval.
    #[arg(long, value_name = "SECONDS", value_parser = parse_number, help_heading = "Sandbox options")]
    pub(crate) egress_wait: Option<f64>,
    /// Network limit: bytes, connections or bytes_per_second; repeatable.
    #[arg(long, value_name = "NAME=NUMBER", value_parser = parse_allowance, help_heading = "Sandbox options")]
    pub(crate) network: Vec<(String, u64)>,
    /// Server secret and the hosts that receive it; the sandbox sees a placeholder; repeatable.
    #[arg(long, value_name = "NAME=HOST,...", value_parser = parse_secret, help_heading = "Sandbox options")]
    pub(crate) secret: Vec<(String, Vec<String>)>,
    /// Weakest isolation to accept: namespaces, or landlock if the host supports nothing stronger.
    #[arg(long, value_name = "NAME", help_heading = "Sandbox options")]
    pub(crate) isolation: Option<String>,
}

impl LimitArguments {
    /// Adds the given limits to a request.
    pub(crate) fn add_to(&self, request: &mut Map<String, Value>) {
        if let Some(image) = &self.image {
            request.insert("image".into(), json!(image));
        }
        if let Some(isolation) = &self.isolation {
            request.insert("isolation".into(), json!(isolation));
        }
        if let Some(egress) = &self.egress {
            request.insert("egress".into(), egress_value(egress));
        }
        if let Some(seconds) = self.egress_wait {
            request.insert("egress_wait_s".into(), json!(seconds));
        }
        let allowances = self.network.iter().map(|(name, number)| (name.clone(), json!(number)));
        extend(request, "network", allowances.collect());
        let secrets = self.secret.iter().map(|(name, hosts)| (name.clone(), json!({ "hosts": hosts })));
        extend(request, "secrets", secrets.collect());
        let mut limits = Map::new();
        let named = [("memory_mib", self.memory), ("disk_mib", self.disk)];
        limits.extend(named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))));
        limits.extend(self.cpus.map(|cpus| ("cpus".to_owned(), json!(cpus))));
        extend(request, "limits", limits);
    }
}

/// Adds fields to an object in a request.
fn extend(request: &mut Map<String, Value>, name: &str, more: Map<String, Value>) {
    if more.is_empty() {
        return;
    }
    match request.entry(name).or_insert_with(|| json!({})) {
        Value::Object(there) => there.extend(more),
        other => *other = Value::Object(more),
    }
}

/// Rejects infinity and NaN: JSON has no such numbers, so the field would be sent as null.
pub(crate) fn parse_number(text: &str) -> Result<f64> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.with_context(|| format!("`{text}` is not a number"))
}

/// Rejects a single word that is not a mode. It cannot be meant as a host: hosts have a dot or can be written with a
/// port.
fn parse_egress(text: &str) -> Result<String> {
    let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_word && !["off", "packages", "open", "learn", "localhost"].contains(&text) {
        bail!(
            "expected off, packages, open, learn, or hosts such as example.org,*.example.org:8443; \
             write a host without a dot with its port, as {text}:443"
        );
    }
    Ok(text.to_owned())
}

fn parse_allowance(text: &str) -> Result<(String, u64)> {
    let parsed = text.split_once('=').and_then(|(name, number)| Some((name, number.parse().ok()?)));
    match parsed {
        Some((name @ ("bytes" | "connections" | "bytes_per_second"), number)) => {
            Ok((name.to_owned(), number))
        }
        _ => bail!("expected bytes=NUMBER, connections=NUMBER or bytes_per_second=NUMBER"),
    }
}

fn parse_secret(text: &str) -> Result<(String, Vec<String>)> {
    match text.split_once('=') {
        Some((name, hosts)) if !name.is_empty() && !hosts.is_empty() => {
            Ok((name.to_owned(), hosts.split(',').map(|host| host.trim().to_owned()).collect()))
        }
        _ => bail!("expected a secret and its hosts, such as GITHUB_TOKEN=api.github.com"),
    }
}

fn egress_value(text: &str) -> Value {
    match text {
        "off" | "packages" | "open" | "learn" => json!(text),
        names => json!({"allow": names.split(',').map(str::trim).collect::<Vec<_>>()}),
    }
}

/// Parses `512`, `512m`, `2g` as mebibytes.
pub(crate) fn parse_mebibytes(text: &str) -> Result<u64> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches("ib").trim_end_matches('b');
    let (digits, factor) = match digits.strip_suffix(['m', 'g', 't']) {
        Some(number) if digits.ends_with('g') => (number, 1024),
        Some(number) if digits.ends_with('t') => (number, 1024 * 1024),
        Some(number) => (number, 1),
        None => (digits, 1),
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(mebibytes) if mebibytes > 0 => Ok(mebibytes),
        _ => bail!("expected a size such as 512m or 2g"),
    }
}

/// Parses `90`, `90s`, `30m`, `12h`, `7d` as seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<u64> {
    let (digits, factor) = match text.strip_suffix(['s', 'm', 'h', 'd']) {
        Some(digits) if text.ends_with('m') => (digits, 60),
        Some(digits) if text.ends_with('h') => (digits, 3600),
        Some(digits) if text.ends_with('d') => (digits, 86_400),
        Some(digits) => (digits, 1),
        None => (text, 1),
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(seconds) if seconds > 0 => Ok(seconds),
        _ => bail!("expected a duration such as 30m, 12h or 7d"),
    }
}

/// Parses `KEY=VALUE`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => bail!("expected KEY=VALUE"),
    }
}

/// Where this host keeps things.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct HostArguments {
    /// Configuration file; caisson.example.toml describes every setting.
    #[arg(long, value_name = "FILE", global = true, help_heading = "Host options")]
    pub(crate) config: Option<PathBuf>,
    /// Data folder: jobs, database and sandboxes.
    #[arg(long, value_name = "FOLDER", global = true, help_heading = "Host options")]
    pub(crate) data: Option<PathBuf>,
    /// Folder for sockets: a short path on a file system that is cleared at boot.
    #[arg(long, value_name = "FOLDER", global = true, help_heading = "Host options")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Sandbox backend: namespace (this host) or docker (containers of an engine).
    #[arg(long, value_name = "KIND", global = true, help_heading = "Host options")]
    pub(crate) backend: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_finite_numbers_are_refused() {
        assert_eq!(parse_number("0.5").unwrap(), 0.5);
        for text in ["nan", "inf", "1e400", "much", ""] {
            assert_eq!(parse_number(text).unwrap_err().to_string(), format!("`{text}` is not a number"));
        }
    }

    #[test]
    fn sizes_are_read_as_mebibytes() {
        let read = |text| parse_mebibytes(text).ok();
        assert_eq!(
            ["512", "512m", "2g", "2GiB", "1T", "10MB"].map(read),
            [Some(512), Some(512), Some(2048), Some(2048), Some(1 << 20), Some(10)]
        );
        assert_eq!(["", "g", "0", "-1", "1.5g", "12k"].map(read), [None; 6]);
    }

    #[test]
    fn times_are_read_as_seconds() {
        let read = |text| parse_seconds(text).ok();
        assert_eq!(
            ["90", "90s", "30m", "1h", "7d"].map(read),
            [Some(90), Some(90), Some(1800), Some(3600), Some(604_800)]
        );
        assert_eq!(["", "h", "0", "1w", "-1", "1.5h"].map(read), [None; 6]);
    }

    #[test]
    fn named_egress_policies_are_sent_by_name() {
        for name in ["off", "packages", "open", "learn"] {
            assert_eq!(egress_value(name), json!(name));
        }
        assert_eq!(egress_value("*.example.org"), json!({"allow": ["*.example.org"]}));
    }

    #[test]
    fn a_mistyped_policy_is_refused_and_a_host_is_not() {
        for text in ["nonsense", "Open", "package", ""] {
            assert!(parse_egress(text).is_err(), "{text:?}");
        }
        for text in
            ["off", "learn", "localhost", "example.org", "git:443", "packages,example.org", "10.0.0.0/8"]
        {
            assert_eq!(parse_egress(text).unwrap(), text);
        }
    }

    #[test]
    fn secrets_and_allowances_have_the_api_format() {
        let arguments = LimitArguments {
            egress_wait: Some(30.0),
            network: vec![parse_allowance("bytes=1000").unwrap()],
            secret: vec![parse_secret("TOKEN=a.example,*.b.example:8443").unwrap()],
            ..Default::default()
        };
        let mut request = Map::new();
        arguments.add_to(&mut request);
        let expected = json!({"egress_wait_s": 30.0, "network": {"bytes": 1000},
            "secrets": {"TOKEN": {"hosts": ["a.example", "*.b.example:8443"]}}});
        assert_eq!(Value::Object(request), expected);
        assert!(parse_allowance("byte=1").is_err() && parse_allowance("bytes=x").is_err());
        assert!(parse_secret("TOKEN").is_err() && parse_secret("TOKEN=").is_err());
    }

    #[test]
    fn limits_join_those_of_the_request() {
        let arguments =
            LimitArguments { memory: Some(64), egress: Some("a.org,b.org".into()), ..Default::default() };
        let mut request = Map::new();
        request.insert("limits".into(), json!({"pids": 9}));
        arguments.add_to(&mut request);
        let expected =
            json!({"limits": {"pids": 9, "memory_mib": 64}, "egress": {"allow": ["a.org", "b.org"]}});
        assert_eq!(Value::Object(request), expected);
    }
}
