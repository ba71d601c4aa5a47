//! The only place where connections are decided and made: policy, name resolution, address check, dialing, log.
//! Every entry point uses it.

mod approval;
mod resolve;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::event::{Connection, EgressEvent, EventSender};
use crate::log::{Record, RefusalLimiter};
use crate::policy::{Grant, Policy, Rule, Visibility};
use crate::refusal::{ReasonCode, Refusal};
use crate::settings::ProxySettings;
use crate::target::Target;
use crate::usage::{Ledger, Meter, Metered};

use self::resolve::Resolver;

pub use self::approval::{Answer, Approver, Question};

/// How many addresses of one name are tried.
const ADDRESSES: usize = 6;

pub(crate) struct Gate {
    policy: watch::Sender<Arc<Policy>>,
    events: EventSender,
    resolver: Resolver,
    settings: ProxySettings,
    next_id: AtomicU64,
    ledger: Arc<Ledger>,
    refusals: Arc<RefusalLimiter>,
    approver: Option<Arc<dyn Approver>>,
}

/// The origin of a connection request.
#[derive(Clone)]
pub(crate) struct Requester {
    /// The call, if known.
    pub(crate) call: Option<String>,
    pub(crate) method: String,
}

/// A connection that was allowed, established and logged.
pub(crate) struct Admitted {
    pub(crate) stream: Metered<TcpStream>,
    pub(crate) meter: Arc<Meter>,
    /// Logs the end of the connection.
    pub(crate) record: Record,
    /// The permission.
    pub(crate) grant: Grant,
}

impl Gate {
    pub(crate) fn new(policy: Policy, events: EventSender, settings: ProxySettings) -> Self {
        Self {
            policy: watch::Sender::new(Arc::new(policy)),
            events,
            resolver: Resolver::new(settings.resolve_timeout),
            next_id: AtomicU64::new(settings.first_id),
            ledger: Arc::new(Ledger::new(settings.allowance, settings.used)),
            refusals: Arc::new(RefusalLimiter::new()),
            approver: None,
            settings,
        }
    }

    pub(crate) fn set_approver(&mut self, approver: Arc<dyn Approver>) {
        self.approver = Some(approver);
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    pub(crate) fn events(&self) -> &EventSender {
        &self.events
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

    /// Decides on a connection and establishes it, or returns why not. The outcome is logged when this returns.
    pub(crate) async fn admit(
        &self,
        requester: Requester,
        target: &Target,
        visibility: Visibility<'_>,
    ) -> Result<Admitted, Refusal> {
        let mut record = self.record(requester.clone(), Some(target));
        let reached = match self.decide(&requester, target, visibility).await {
            Ok(grant) => {
                record.set_rule(grant.rule.clone());
                match self.reach(&self.policy(), target).await {
                    Ok(reached) => Ok((reached, grant)),
                    Err(refusal) => {
                        self.give_back(&grant).await;
                        Err(refusal)
                    }
                }
            }
            Err(refusal) => Err(refusal),
        };
        match reached {
            Ok(((stream, address), grant)) => {
                let record = record.open(address).await?;
                let meter = record.meter();
                let stream = Metered::new(stream, Arc::clone(&meter), Arc::clone(&self.ledger));
                Ok(Admitted { stream, meter, record, grant })
            }
            Err(refusal) => {
                self.log_refusal(record, &refusal).await;
                Err(refusal)
            }
        }
    }

    async fn decide(
        &self,
        requester: &Requester,
        target: &Target,
        visibility: Visibility<'_>,
    ) -> Result<Grant, Refusal> {
        let grant = match self.policy().check(target, visibility) {
            Ok(grant) => grant,
            Err(refusal) => self.ask(requester, target, visibility, refusal).await?,
        };
        if let Err(refusal) = self.ledger.connect(target) {
            self.give_back(&grant).await;
            return Err(refusal);
        }
        Ok(grant)
    }

    /// Returns a one-time permission whose connection could not be established.
    pub(crate) async fn give_back(&self, grant: &Grant) {
        if let (Some(approver), Some(rule)) = (&self.approver, grant.once_rule()) {
            approver.give_back(rule).await;
        }
    }

    /// Decides on a request within an established connection. If a person allowed that connection once, the request
    /// it was made for is allowed too.
    pub(crate) async fn decide_request(
        &self,
        requester: &Requester,
        target: &Target,
        visibility: Visibility<'_>,
        connection: &Grant,
    ) -> Result<Option<Grant>, Refusal> {
        match self.policy().check(target, visibility) {
            Ok(_) => Ok(None),
            Err(refusal) if connection.is_once() && refusal.code.is_about_host() => Ok(None),
            Err(refusal) => self.ask(requester, target, visibility, refusal).await.map(Some),
        }
    }

    /// Asks a person about a refusal, if there is one to ask and the refusal can be approved.
    async fn ask(
        &self,
        requester: &Requester,
        target: &Target,
        visibility: Visibility<'_>,
        refusal: Refusal,
    ) -> Result<Grant, Refusal> {
        let Some(approver) = self.approver.as_ref().filter(|_| refusal.code.may_be_approved()) else {
            return Err(refusal);
        };
        // A host that is allowed for some requests is not opened completely because one more request is approved.
        let rule = match visibility {
            Visibility::Request { method, path } if refusal.code == ReasonCode::RequestNotAllowed => {
                // Do not ask about a path that would be unreadable in the question.
                match Rule::for_request(target, method, path) {
                    Some(rule) => rule,
                    None => return Err(refusal),
                }
            }
            _ => Rule::for_target(target),
        };
        let question = Question {
            target: target.clone(),
            call: requester.call.clone(),
            refusal: refusal.clone(),
            rule: rule.clone(),
        };
        match approver.ask(question, self.settings.approval_timeout).await {
            Answer::Refuse => Err(refusal),
            Answer::Once => Ok(Grant::once(&rule)),
            Answer::Always(rule) => {
                let grant = Grant { rule: format!("approved:{rule}") };
                self.policy.send_modify(|policy| {
                    *policy = Arc::new(Policy::clone(policy).with_approved(rule.clone()));
                });
                Ok(grant)
            }
        }
    }

    /// Logs a refusal that was decided elsewhere.
    pub(crate) async fn refuse(&self, requester: Requester, target: Option<&Target>, refusal: &Refusal) {
        self.log_refusal(self.record(requester, target), refusal).await;
    }

    /// Logs a refusal. Clients with many refusals are delayed.
    async fn log_refusal(&self, record: Record, refusal: &Refusal) {
        record.refuse(refusal).await;
        let pause = refusal.code.is_policy().then(|| self.refusals.pause()).flatten();
        if let Some(pause) = pause {
            tokio::time::sleep_until(pause).await;
        }
    }

    /// Logs the refusals that were counted but not logged yet.
    pub(crate) async fn flush_refusals(&self) {
        for connection in self.refusals.held() {
            let _ = self.events.send(EgressEvent::Refused(connection)).await;
        }
    }

    fn record(&self, requester: Requester, target: Option<&Target>) -> Record {
        let mut connection = Connection::numbered(self.next_id.fetch_add(1, Ordering::Relaxed));
        connection.call = requester.call;
        connection.method = requester.method;
        if let Some(target) = target {
            connection.host = target.host.to_string();
            connection.port = target.port;
        }
        Record::new(self.events.clone(), Arc::clone(&self.refusals), connection)
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

    /// Tries the checked addresses in turn. The name is not resolved again, so it cannot lead to a different
    /// address.
    async fn dial(&self, target: &Target, addresses: &[SocketAddr]) -> Result<(TcpStream, IpAddr), Refusal> {
        let limit = self.settings.connect_timeout;
        let mut failure = Refusal::failure(ReasonCode::ConnectFailed, format!("{target} has no address"));
        for address in addresses.iter().take(ADDRESSES) {
            let ip = address.ip();
            match timeout(limit, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "cannot set TCP_NODELAY");
                    }
                    return Ok((stream, ip));
                }
                Ok(Err(error)) => {
                    let reason = format!("cannot connect to {target} at {ip}: {error}");
                    failure = Refusal::failure(ReasonCode::ConnectFailed, reason);
                }
                Err(_) => {
                    let reason = format!("cannot connect to {target}: {ip} did not answer within {limit:?}");
                    failure = Refusal::failure(ReasonCode::Timeout, reason);
                }
            }
        }
        Err(failure)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;

    /// A name server that changes its answer: first a harmless address, afterwards one that must not be reached.
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    fn rebinding_lookup(_name: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let last = if ASKED.fetch_add(1, Ordering::SeqCst) == 0 { 1 } else { 2 };
        Ok(vec![SocketAddr::from(([127, 0, 0, last], port))])
    }

    #[tokio::test]
    async fn dns_rebinding_does_not_change_the_checked_address() {
        let harmless = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = harmless.local_addr().unwrap().port();
        let ranges = serde_json::from_str(r#"{"allow": ["127.0.0.1/32"]}"#).unwrap();
        let policy = Policy::new(crate::policy::Mode::Open, ranges).unwrap();
        let (events, _log) = mpsc::channel(16);
        let settings = ProxySettings::default();
        let mut gate = Gate::new(policy, events, settings.clone());
        gate.resolver = Resolver::new(settings.resolve_timeout).with_lookup(rebinding_lookup);
        let target = Target { host: "rebinding.example".parse().unwrap(), port };
        let requester = Requester { call: None, method: "CONNECT".into() };
        let admitted = gate.admit(requester.clone(), &target, Visibility::Bytes).await;
        assert!(admitted.is_ok());
        assert_eq!(harmless.accept().await.unwrap().1.ip().to_string(), "127.0.0.1");
        assert_eq!(ASKED.load(Ordering::SeqCst), 1, "asked once for the check and the connection");
        let refused = gate.admit(requester, &target, Visibility::Bytes).await;
        assert_eq!(refused.err().map(|refusal| refusal.code), Some(ReasonCode::RefusedRange));
        assert_eq!(ASKED.load(Ordering::SeqCst), 2);
    }
}
