//! Finds what a command about this host describes: the server that answers, or else the local data folder.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use serde_json::Value;

use super::Client;
use crate::arguments::{HostArguments, ServerArguments};
use crate::config::{Config, client_environment};
use crate::output::say;

/// What a command describes.
pub(crate) enum Described {
    /// The server at this URL, and its answer.
    Server { url: String, answer: Value },
    /// The data folder of this configuration. `why` is missing if the user has named the folder.
    Folder { config: Box<Config>, why: Option<String> },
}

impl Described {
    /// Asks the server for `path`: the one of `--url`; or else the one at the configured address, unless a flag names a
    /// data folder or a backend.
    ///
    /// # Errors
    /// The server of `--url` does not answer, or the local configuration is invalid.
    pub(crate) async fn find(server: &ServerArguments, host: &HostArguments, path: &str) -> Result<Self> {
        if server.url.is_some() {
            let client = Client::new(server)?;
            let answer = client.get(path).await?;
            return Ok(Self::Server { url: client.url().to_owned(), answer });
        }
        let config = Box::new(Config::load(host, &[], false)?);
        if names_folder(host) {
            return Ok(Self::Folder { config, why: None });
        }
        let url = client_environment::named_url().or_else(|| url_of(&config));
        let why = match ask(&ServerArguments { url, ..server.clone() }, path).await {
            Ok((url, answer)) => return Ok(Self::Server { url, answer }),
            Err(why) => why,
        };
        Ok(Self::Folder { config, why: Some(why) })
    }

    /// Says on standard error what the output describes.
    pub(crate) fn announce(&self) {
        match self {
            Self::Server { url, answer } => {
                let about = &answer["server"];
                let version = about["version"].as_str().map(|version| format!(", version {version}"));
                let data = about["data"].as_str().map(|data| format!(", data folder {data}"));
                say(&format!("server: {url}{}{}", version.unwrap_or_default(), data.unwrap_or_default()));
            }
            Self::Folder { config, why: Some(why) } => {
                say(&format!("{why}; this describes the data folder {}", config.data.display()));
            }
            Self::Folder { why: None, .. } => {}
        }
    }
}

/// Whether flags describe a server that need not run.
fn names_folder(host: &HostArguments) -> bool {
    host.data.is_some() || host.run_dir.is_some() || host.backend.is_some()
}

/// The URL and answer of a server, or why there is none.
async fn ask(server: &ServerArguments, path: &str) -> Result<(String, Value), String> {
    let client = Client::new(server).map_err(|error| format!("{error:#}"))?;
    let url = client.url().to_owned();
    if !client.is_answered().await {
        return Err(format!("no server answers at {url}"));
    }
    match client.get(path).await {
        Ok(answer) => Ok((url, answer)),
        Err(error) => Err(format!("the server at {url} refuses to answer: {error:#}")),
    }
}

/// The URL by which this host reaches a server with this configuration.
fn url_of(config: &Config) -> Option<String> {
    let scheme = if config.http.certificate.is_some() { "https" } else { "http" };
    let address = config.listen.iter().find(|address| address.port() != 0)?;
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Some(format!("{scheme}://{}", SocketAddr::new(ip, address.port())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_reached_at_its_listen_address() {
        let url = |text: &str| {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("caisson.toml");
            std::fs::write(&file, text).unwrap();
            let arguments = HostArguments { config: Some(file), ..HostArguments::default() };
            url_of(&Config::load(&arguments, &[], true).unwrap())
        };
        assert_eq!(url("").as_deref(), Some("http://127.0.0.1:8000"));
        assert_eq!(url("listen = [\"127.0.0.1:0\", \"[::]:9000\"]").as_deref(), Some("http://[::1]:9000"));
        assert_eq!(url("listen = \"0.0.0.0:80\"").as_deref(), Some("http://127.0.0.1:80"));
        assert_eq!(url("listen = \"127.0.0.1:0\""), None);
    }
}
