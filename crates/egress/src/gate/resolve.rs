//! Resolves names, once per connection. The returned addresses are the ones that are checked and connected to.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::refusal::{ReasonCode, Refusal};
use crate::target::{Host, Target};

/// Maximum number of concurrent lookups of one sandbox. Each blocks a server thread until the name server responds,
/// so a sandbox with many slow lookups must not use up all threads.
const MAX_LOOKUPS: usize = 8;

/// Looks up the addresses of a name.
type Lookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// Uses the server host's resolver.
pub(crate) struct Resolver {
    lookups: Arc<Semaphore>,
    timeout: Duration,
    ask: Lookup,
}

fn system_lookup(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (name, port).to_socket_addrs().map(Iterator::collect)
}

impl Resolver {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)), timeout, ask: system_lookup }
    }

    /// Replaces the lookup function.
    #[cfg(test)]
    pub(crate) fn with_lookup(self, ask: Lookup) -> Self {
        Self { ask, ..self }
    }

    /// The addresses of a target in the order in which to try them; at least one.
    pub(crate) async fn resolve(&self, target: &Target) -> Result<Vec<SocketAddr>, Refusal> {
        let name = match &target.host {
            Host::Address(address) => return Ok(vec![SocketAddr::new(*address, target.port)]),
            Host::Name(name) => name.clone(),
        };
        let answer = tokio::time::timeout(self.timeout, self.look_up(name.clone(), target.port)).await;
        match answer {
            Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
            Ok(Ok(_)) => Err(unresolved(target, &name, "it has no address")),
            Ok(Err(error)) => {
                // The standard library's own words say only what was attempted.
                let why = error.to_string();
                let why = why.strip_prefix("failed to lookup address information: ").unwrap_or(&why);
                Err(unresolved(target, &name, why))
            }
            Err(_) => Err(Refusal::failure(
                ReasonCode::Timeout,
                format!("cannot connect to {target}: resolving {name} took longer than {:?}", self.timeout),
            )),
        }
    }

    async fn look_up(&self, name: String, port: u16) -> io::Result<Vec<SocketAddr>> {
        let permit = Arc::clone(&self.lookups).acquire_owned().await.map_err(io::Error::other)?;
        let ask = self.ask;
        let lookup = tokio::task::spawn_blocking(move || {
            // The thread holds the permit, so a lookup whose caller has timed out still counts.
            let _permit = permit;
            ask(&name, port)
        });
        lookup.await.map_err(io::Error::other)?
    }
}

fn unresolved(target: &Target, name: &str, why: &str) -> Refusal {
    let reason = format!(
        "cannot connect to {target}: the name {name} cannot be resolved ({why}); check the name, or the name servers in \
         /etc/resolv.conf of the host that the server runs on"
    );
    Refusal::failure(ReasonCode::ResolveFailed, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unresolved_name_is_reported_with_a_hint_about_the_resolver() {
        let target = Target { host: "gone.example".parse().unwrap(), port: 443 };
        let lookups: [(Lookup, &str); 3] = [
            (
                |_, _| Err(io::Error::other("failed to lookup address information: No such name")),
                "(No such name)",
            ),
            (|_, _| Err(io::Error::other("no resolver")), "(no resolver)"),
            (|_, _| Ok(Vec::new()), "(it has no address)"),
        ];
        for (lookup, why) in lookups {
            let resolver = Resolver::new(Duration::from_secs(60)).with_lookup(lookup);
            let refusal = resolver.resolve(&target).await.unwrap_err();
            assert_eq!(refusal.code, ReasonCode::ResolveFailed);
            let start = format!(
                "cannot connect to gone.example:443: the name gone.example cannot be resolved {why}; "
            );
            assert!(refusal.reason.starts_with(&start), "{}", refusal.reason);
            assert!(refusal.reason.contains("/etc/resolv.conf of the host"), "{}", refusal.reason);
        }
    }
}
