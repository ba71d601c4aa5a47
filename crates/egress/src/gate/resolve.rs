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
            Ok(Ok(_)) => Err(failed(format!("{target} cannot be reached, {name} has no address"))),
            Ok(Err(error)) => {
                Err(failed(format!("{target} cannot be reached, {name} does not resolve: {error}")))
            }
            Err(_) => Err(Refusal::failure(
                ReasonCode::Timeout,
                format!("{target} cannot be reached, resolving {name} took longer than {:?}", self.timeout),
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

fn failed(reason: String) -> Refusal {
    Refusal::failure(ReasonCode::ResolveFailed, reason)
}
