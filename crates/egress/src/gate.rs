//! The one place where a connection is decided and made: policy, name, address, dial, log. Every entrance uses it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::event::{Connection, EventSender, Record};
use crate::meter::{Meter, Metered};
use crate::policy::Policy;
use crate::proxy::ProxySettings;
use crate::refusal::{ReasonCode, Refusal};
use crate::resolve::Resolver;
use crate::target::Target;

/// How many addresses of one name are tried.
const ADDRESSES: usize = 6;

/// Decides and makes connections.
pub(crate) struct Gate {
    policy: watch::Sender<Arc<Policy>>,
    events: EventSender,
    resolver: Resolver,
    settings: ProxySettings,
    next_id: AtomicU64,
}

/// Who asks for a connection, and how.
pub(crate) struct Asker {
    /// The call, where it is known.
    pub(crate) call: Option<String>,
    /// The method of the request.
    pub(crate) method: String,
}

/// A connection that was allowed, made and logged.
pub(crate) struct Admitted {
    /// To the server.
    pub(crate) stream: Metered<TcpStream>,
    /// Its counters.
    pub(crate) meter: Arc<Meter>,
    /// Tells the log of its end.
    pub(crate) record: Record,
}

impl Gate {
    pub(crate) fn new(policy: Policy, events: EventSender, settings: ProxySettings) -> Self {
        Self {
            policy: watch::Sender::new(Arc::new(policy)),
            events,
            resolver: Resolver::new(settings.resolve_timeout),
            next_id: AtomicU64::new(settings.first_id),
            settings,
        }
    }

    pub(crate) fn settings(&self) -> &ProxySettings {
        &self.settings
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.borrow())
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.policy.send_replace(Arc::new(policy));
    }

    /// Decides a connection and makes it, or says why not. Either is in the log when this returns.
    pub(crate) async fn admit(&self, asker: Asker, target: &Target) -> Result<Admitted, Refusal> {
        let mut record = self.record(asker, Some(target));
        let policy = self.policy();
        let reached = match policy.check(target) {
            Ok(grant) => {
                record.set_rule(grant.rule);
                self.reach(&policy, target).await
            }
            Err(refusal) => Err(refusal),
        };
        match reached {
            Ok((stream, address)) => {
                let record = record.open(address).await?;
                let meter = record.meter();
                Ok(Admitted { stream: Metered::new(stream, Arc::clone(&meter)), meter, record })
            }
            Err(refusal) => {
                record.refuse(&refusal).await;
                Err(refusal)
            }
        }
    }

    /// Logs a refusal that was decided elsewhere.
    pub(crate) async fn refuse(&self, asker: Asker, target: Option<&Target>, refusal: &Refusal) {
        self.record(asker, target).refuse(refusal).await;
    }

    fn record(&self, asker: Asker, target: Option<&Target>) -> Record {
        let mut connection = Connection::numbered(self.next_id.fetch_add(1, Ordering::Relaxed));
        connection.call = asker.call;
        connection.method = asker.method;
        if let Some(target) = target {
            connection.host = target.host.to_string();
            connection.port = target.port;
        }
        Record::new(self.events.clone(), connection)
    }

    async fn reach(&self, policy: &Policy, target: &Target) -> Result<(TcpStream, IpAddr), Refusal> {
        let mut allowed = Vec::new();
        let mut refusal = None;
        for address in self.resolver.resolve(target).await? {
            match policy.check_address(target, address.ip()) {
                Ok(()) => allowed.push(address),
                Err(refused) => refusal = Some(refused),
            }
        }
        match refusal {
            Some(refusal) if allowed.is_empty() => Err(refusal),
            _ => self.dial(target, &allowed).await,
        }
    }

    /// Tries checked addresses one after another; a name is never resolved again, so it cannot change its mind.
    async fn dial(&self, target: &Target, addresses: &[SocketAddr]) -> Result<(TcpStream, IpAddr), Refusal> {
        let limit = self.settings.connect_timeout;
        let mut failure = Refusal::failure(ReasonCode::ConnectFailed, format!("{target} has no address"));
        for address in addresses.iter().take(ADDRESSES) {
            let place = address.ip();
            match timeout(limit, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "small packets to a server may be delayed");
                    }
                    return Ok((stream, place));
                }
                Ok(Err(error)) => {
                    let reason = format!("{target} cannot be reached at {place}: {error}");
                    failure = Refusal::failure(ReasonCode::ConnectFailed, reason);
                }
                Err(_) => {
                    let reason =
                        format!("{target} cannot be reached, {place} did not answer within {limit:?}");
                    failure = Refusal::failure(ReasonCode::Timeout, reason);
                }
            }
        }
        Err(failure)
    }
}
