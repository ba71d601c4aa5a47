//! Binds listeners, and says what to do if that fails.

use std::io::{Error, ErrorKind};
use std::net::SocketAddr;

use anyhow::{Result, anyhow};
use tokio::net::TcpListener;

/// Where the kernel says which ports need privileges.
const FIRST_UNPRIVILEGED_PORT: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// The kernel's default.
const DEFAULT_FIRST_PORT: u16 = 1024;

/// Binds a listener. `setting` is the flag or setting with which the user chooses another address.
pub(crate) async fn bind(address: SocketAddr, setting: &str) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| anyhow!(describe(address, setting, &error, first_unprivileged_port())))
}

fn first_unprivileged_port() -> u16 {
    let text = std::fs::read_to_string(FIRST_UNPRIVILEGED_PORT).ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_FIRST_PORT)
}

fn describe(address: SocketAddr, setting: &str, error: &Error, first_port: u16) -> String {
    let port = address.port();
    let why = match error.kind() {
        ErrorKind::AddrInUse => format!(
            "another program uses the port; find it with `ss -ltnp 'sport = :{port}'`, or choose another port with \
             {setting}"
        ),
        ErrorKind::PermissionDenied if port < first_port => format!(
            "permission denied: only root may use ports below {first_port}; choose another port with {setting}, run \
             caisson as root, or allow it to all users with `sudo sysctl net.ipv4.ip_unprivileged_port_start={port}`"
        ),
        ErrorKind::PermissionDenied => format!(
            "permission denied by a rule of this host, such as SELinux or AppArmor; change the rule, or choose \
             another port with {setting}"
        ),
        ErrorKind::AddrNotAvailable => format!(
            "this machine does not have the address {}; `ip address` lists those that it has. Choose one, or {} for \
             all, with {setting}",
            address.ip(),
            if address.is_ipv4() { "0.0.0.0" } else { "[::]" }
        ),
        _ => format!("{error}; choose another address with {setting}"),
    };
    format!("cannot listen on {address}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(address: &str, kind: ErrorKind) -> String {
        describe(address.parse().unwrap(), "--listen", &kind.into(), 1024)
    }

    #[test]
    fn each_failure_to_listen_has_its_own_remedy() {
        let refused = described("127.0.0.1:80", ErrorKind::PermissionDenied);
        assert!(refused.starts_with("cannot listen on 127.0.0.1:80: permission denied"), "{refused}");
        assert!(refused.contains("ports below 1024") && refused.contains("port_start=80"), "{refused}");
        assert!(!refused.contains("uses the port"), "{refused}");
        assert!(described("127.0.0.1:8000", ErrorKind::PermissionDenied).contains("SELinux"));
        let taken = described("127.0.0.1:8000", ErrorKind::AddrInUse);
        assert!(
            taken.contains("another program uses the port") && taken.contains("sport = :8000"),
            "{taken}"
        );
        let elsewhere = described("[2001:db8::1]:8000", ErrorKind::AddrNotAvailable);
        assert!(
            elsewhere.contains("the address 2001:db8::1;") && elsewhere.contains("[::] for all"),
            "{elsewhere}"
        );
        let other = described("127.0.0.1:8000", ErrorKind::OutOfMemory);
        assert!(other.contains("out of memory; choose another address with --listen"), "{other}");
    }

    #[tokio::test]
    async fn port_in_use_is_reported() {
        let first = bind("127.0.0.1:0".parse().unwrap(), "--listen").await.unwrap();
        let error = bind(first.local_addr().unwrap(), "--listen").await.unwrap_err().to_string();
        assert!(error.contains("another program uses the port"), "{error}");
    }
}
