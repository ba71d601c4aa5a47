//! Names to addresses, once for each connection. What is returned here is what is checked and connected to.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::refusal::{ReasonCode, Refusal};
use crate::target::{Host, Target};

/// Lookups of one sandbox at a time. Each takes a thread of the server until the name server answers, so a sandbox
/// that asks for many slow names must not take them all.
const LOOKUPS: usize = 8;

/// Finds the addresses of a name.
type Ask = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// Asks the host's resolver.
pub(crate) struct Resolver {
    lookups: Arc<Semaphore>,
    timeout: Duration,
    ask: Ask,
}

fn ask_host(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (name, port).to_socket_addrs().map(Iterator::collect)
}

impl Resolver {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { lookups: Arc::new(Semaphore::new(LOOKUPS)), timeout, ask: ask_host }
    }

    /// Asks somebody else.
    #[cfg(test)]
    pub(crate) fn asking(self, ask: Ask) -> Self {
        Self { ask, ..self }
    }

    /// The addresses of a target, in the order in which they should be tried; at least one.
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
            // Held by the thread: a lookup that nobody waits for any more still counts.
            let _permit = permit;
            ask(&name, port)
        });
        lookup.await.map_err(io::Error::other)?
    }
}

fn failed(reason: String) -> Refusal {
    Refusal::failure(ReasonCode::ResolveFailed, reason)
}
