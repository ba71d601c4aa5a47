//! The section `[expose]`: ports that show the newest running job.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use super::addresses;

/// `[expose]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawExpose {
    #[serde(deserialize_with = "addresses::read_hosts")]
    pub(crate) listen: Option<Vec<IpAddr>>,
    pub(crate) novnc: Option<u16>,
    pub(crate) jupyter: Option<u16>,
    pub(crate) vnc: Option<u16>,
}

/// The checked ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expose {
    listen: Vec<IpAddr>,
    pub(crate) novnc: Option<u16>,
    pub(crate) jupyter: Option<u16>,
    pub(crate) vnc: Option<u16>,
}

impl Expose {
    /// The addresses of one of the ports; none if it is disabled.
    pub(crate) fn addresses_of(&self, port: Option<u16>) -> Vec<SocketAddr> {
        port.iter().flat_map(|port| self.listen.iter().map(|host| SocketAddr::new(*host, *port))).collect()
    }

    /// The addresses of all ports.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        [self.novnc, self.jupyter, self.vnc].into_iter().flat_map(|port| self.addresses_of(port)).collect()
    }
}

/// Checks that there is an address, and that no address and no port is used twice.
pub(crate) fn check(raw: RawExpose) -> Result<Expose> {
    let listen = raw.listen.unwrap_or_else(|| vec![Ipv4Addr::LOCALHOST.into()]);
    ensure!(!listen.is_empty(), "expose.listen: is empty; set at least one address");
    for (index, address) in listen.iter().enumerate() {
        ensure!(!listen[..index].contains(address), "expose.listen: {address} is listed more than once");
    }
    let ports = [("novnc", raw.novnc), ("jupyter", raw.jupyter), ("vnc", raw.vnc)];
    for (index, (name, port)) in ports.iter().enumerate() {
        ensure!(*port != Some(0), "expose.{name}: 0 is not a port; omit the key to disable it");
        let duplicate = ports.iter().take(index).find(|(_, other)| port.is_some() && other == port);
        if let Some((other, _)) = duplicate {
            bail!("expose.{name}: is the same port as expose.{other}");
        }
    }
    Ok(Expose { listen, novnc: raw.novnc, jupyter: raw.jupyter, vnc: raw.vnc })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<Expose> {
        check(toml::from_str(text).unwrap())
    }

    #[test]
    fn every_port_listens_on_every_address() {
        let expose = checked("listen = [\"0.0.0.0\", \"::\"]\nnovnc = 6080\njupyter = 8888").unwrap();
        let texts = |addresses: Vec<SocketAddr>| -> Vec<String> {
            addresses.iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(expose.addresses_of(expose.novnc)), ["0.0.0.0:6080", "[::]:6080"]);
        assert_eq!(expose.addresses().len(), 4);
        assert!(expose.addresses_of(expose.vnc).is_empty());
        let expose = checked("vnc = 5900").unwrap();
        assert_eq!(texts(expose.addresses()), ["127.0.0.1:5900"]);
        assert!(
            checked("listen = \"0.0.0.0\"").unwrap().addresses().is_empty(),
            "without a port nothing listens"
        );
    }

    #[test]
    fn unusable_addresses_and_ports_are_refused() {
        for (text, key) in [
            ("listen = []", "expose.listen"),
            ("listen = [\"::1\", \"::1\"]", "expose.listen"),
            ("novnc = 0", "expose.novnc"),
            ("novnc = 8888\njupyter = 8888", "expose.jupyter"),
        ] {
            let error = checked(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{key}: ")), "{text}: {error}");
        }
    }
}
