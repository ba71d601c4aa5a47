//! Services: programs that are kept running for others, such as the X server, a kernel or a notebook server.
//!
//! A service starts at its first use (others who come meanwhile wait for the same start), lives as long as a
//! [`ServiceUse`] exists and for its idle time after, and is started again when it crashes while in use. Its processes
//! are ordinary ones of the agent; what it prints goes to a bounded log. [`supervise`] owns the life of each.

mod log;
mod probe;
mod requests;
mod supervise;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use protocol::{ServiceName, ServiceSpec, ServiceState, ServiceStatus};
use tokio::sync::watch;
use tokio::task::spawn_local;

pub(crate) use probe::connect;
pub(crate) use requests::serve;

use crate::guest::Guest;
use log::ServiceLog;

/// Services of different names in one sandbox.
const MAX_SERVICES: usize = 64;
/// How deep services may require others.
const MAX_DEPTH: usize = 4;

/// Why a service is not there, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ServiceFailure(pub(crate) String);

/// Where a service stands, with what waiting users need to know.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Stopped,
    Starting,
    Running { pid: i32 },
    Restarting,
    Stopping,
    Failed(ServiceFailure),
}

/// What the supervisor is told to do with a running service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Run,
    Stop,
    Restart,
}

struct Service {
    spec: RefCell<ServiceSpec>,
    phase: watch::Sender<Phase>,
    wish: watch::Sender<Wish>,
    users: watch::Sender<u32>,
    /// Counts signs that it is of use to somebody who does not hold it.
    touched: watch::Sender<u64>,
    log: RefCell<ServiceLog>,
    /// Wakes those who wait for a line.
    printed: watch::Sender<u64>,
    starts: Cell<u32>,
    crashes: Cell<u32>,
    message: RefCell<Option<String>>,
    /// When it last failed or crashed, and how often in a row: the next start waits accordingly.
    last_failure: Cell<Option<Instant>>,
    failures_in_a_row: Cell<u32>,
}

impl Service {
    fn new(spec: ServiceSpec) -> Self {
        Self {
            spec: RefCell::new(spec),
            phase: watch::Sender::new(Phase::Stopped),
            wish: watch::Sender::new(Wish::Run),
            users: watch::Sender::new(0),
            touched: watch::Sender::new(0),
            log: RefCell::default(),
            printed: watch::Sender::new(0),
            starts: Cell::new(0),
            crashes: Cell::new(0),
            message: RefCell::new(None),
            last_failure: Cell::new(None),
            failures_in_a_row: Cell::new(0),
        }
    }

    fn is_supervised(&self) -> bool {
        !matches!(*self.phase.borrow(), Phase::Stopped | Phase::Failed(_))
    }

    fn status(&self) -> ServiceStatus {
        let (state, pid) = match &*self.phase.borrow() {
            Phase::Stopped => (ServiceState::Stopped, None),
            Phase::Starting => (ServiceState::Starting, None),
            Phase::Running { pid } => (ServiceState::Running, u32::try_from(*pid).ok()),
            Phase::Restarting => (ServiceState::Restarting, None),
            Phase::Stopping => (ServiceState::Stopping, None),
            Phase::Failed(_) => (ServiceState::Failed, None),
        };
        ServiceStatus {
            name: self.spec.borrow().name.clone(),
            state,
            pid,
            users: *self.users.borrow(),
            starts: self.starts.get(),
            crashes: self.crashes.get(),
            message: self.message.borrow().clone(),
        }
    }
}

/// Keeps a service running. It may crash meanwhile and be started again.
pub(crate) struct ServiceUse {
    service: Rc<Service>,
}

impl ServiceUse {
    fn new(service: Rc<Service>) -> Self {
        service.users.send_modify(|users| *users += 1);
        Self { service }
    }

    /// The process that runs now, where one does.
    #[allow(dead_code, reason = "for users inside the guest that signal their service")]
    pub(crate) fn pid(&self) -> Option<i32> {
        match *self.service.phase.borrow() {
            Phase::Running { pid } => Some(pid),
            _ => None,
        }
    }

    /// Why the service has ended and is not started again; `None` while it runs or is started.
    pub(crate) fn failure(&self) -> Option<ServiceFailure> {
        match &*self.service.phase.borrow() {
            Phase::Failed(failure) => Some(failure.clone()),
            Phase::Stopped => {
                let name = self.service.spec.borrow().name.clone();
                Some(ServiceFailure(format!("the service `{name}` was stopped")))
            }
            Phase::Starting | Phase::Running { .. } | Phase::Restarting | Phase::Stopping => None,
        }
    }

    /// Waits until the service no longer runs: it has crashed or was stopped.
    #[allow(dead_code, reason = "for users inside the guest that hold more than a connection")]
    pub(crate) async fn ended(&self) {
        let mut phases = self.service.phase.subscribe();
        let _ = phases.wait_for(|phase| !matches!(phase, Phase::Running { .. })).await;
    }
}

impl Drop for ServiceUse {
    fn drop(&mut self) {
        self.service.users.send_modify(|users| *users = users.saturating_sub(1));
    }
}

/// All services of this sandbox.
#[derive(Default)]
pub(crate) struct Services {
    table: RefCell<BTreeMap<ServiceName, Rc<Service>>>,
}

impl Services {
    /// Starts a service where needed, waits until it is ready and keeps it running until the result is dropped.
    pub(crate) async fn acquire(guest: &Rc<Guest>, spec: &ServiceSpec) -> Result<ServiceUse, ServiceFailure> {
        check_depth(spec, MAX_DEPTH)?;
        let service = guest.services.enter(spec)?;
        // Before anything is awaited, so that the supervisor sees a user.
        let held = ServiceUse::new(Rc::clone(&service));
        // One that is on its way down is waited for.
        let _ = service.phase.subscribe().wait_for(|phase| *phase != Phase::Stopping).await;
        if !service.is_supervised() {
            *service.spec.borrow_mut() = spec.clone();
            service.wish.send_replace(Wish::Run);
            service.phase.send_replace(Phase::Starting);
            spawn_local(supervise::run(Rc::clone(guest), Rc::clone(&service)));
        }
        wait_until_ready(&service).await?;
        Ok(held)
    }

    fn enter(&self, spec: &ServiceSpec) -> Result<Rc<Service>, ServiceFailure> {
        let mut table = self.table.borrow_mut();
        if let Some(service) = table.get(&spec.name) {
            return Ok(Rc::clone(service));
        }
        if table.len() >= MAX_SERVICES {
            let message = format!("{MAX_SERVICES} services are known already; no more can be added");
            return Err(ServiceFailure(message));
        }
        let service = Rc::new(Service::new(spec.clone()));
        table.insert(spec.name.clone(), Rc::clone(&service));
        Ok(service)
    }

    fn find(&self, name: &ServiceName) -> Result<Rc<Service>, ServiceFailure> {
        let found = self.table.borrow().get(name).cloned();
        found.ok_or_else(|| ServiceFailure(format!("the service `{name}` was never started in this sandbox")))
    }

    /// Lets the idle time of a service begin anew, where it runs. Unlike a use, this starts nothing that has ended.
    pub(crate) fn touch(&self, name: &str) {
        let table = self.table.borrow();
        if let Some(service) = table.iter().find_map(|(key, value)| (key.as_str() == name).then_some(value)) {
            service.touched.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Whether a service runs now.
    pub(crate) fn is_running(&self, name: &str) -> bool {
        let runs = |service: &Service| matches!(*service.phase.borrow(), Phase::Running { .. });
        self.table.borrow().iter().any(|(key, service)| key.as_str() == name && runs(service))
    }

    /// All that were ever started.
    pub(crate) fn status(&self) -> Vec<ServiceStatus> {
        self.table.borrow().values().map(|service| service.status()).collect()
    }

    /// The newest output of a service.
    pub(crate) fn log(&self, name: &ServiceName) -> Result<String, ServiceFailure> {
        Ok(self.find(name)?.log.borrow().text())
    }

    /// Stops a service; returns when it has ended.
    pub(crate) async fn stop(&self, name: &ServiceName) -> Result<(), ServiceFailure> {
        let service = self.find(name)?;
        if service.is_supervised() {
            service.wish.send_replace(Wish::Stop);
        }
        let is_over = |phase: &Phase| matches!(phase, Phase::Stopped | Phase::Failed(_));
        let _ = service.phase.subscribe().wait_for(is_over).await;
        Ok(())
    }

    /// Stops a service and starts it again; returns when it is ready.
    pub(crate) async fn restart(guest: &Rc<Guest>, name: &ServiceName) -> Result<(), ServiceFailure> {
        let service = guest.services.find(name)?;
        if matches!(*service.phase.borrow(), Phase::Running { .. }) {
            let mut phases = service.phase.subscribe();
            service.wish.send_replace(Wish::Restart);
            let _ = phases.wait_for(|phase| !matches!(phase, Phase::Running { .. })).await;
            return wait_until_ready(&service).await;
        }
        let spec = service.spec.borrow().clone();
        Self::acquire(guest, &spec).await.map(drop)
    }
}

async fn wait_until_ready(service: &Service) -> Result<(), ServiceFailure> {
    let mut phases = service.phase.subscribe();
    let is_settled =
        |phase: &Phase| matches!(phase, Phase::Running { .. } | Phase::Failed(_) | Phase::Stopped);
    match phases.wait_for(is_settled).await.as_deref() {
        Ok(Phase::Running { .. }) => Ok(()),
        Ok(Phase::Failed(failure)) => Err(failure.clone()),
        _ => {
            let name = service.spec.borrow().name.clone();
            Err(ServiceFailure(format!("the service `{name}` was stopped while it was starting")))
        }
    }
}

fn check_depth(spec: &ServiceSpec, left: usize) -> Result<(), ServiceFailure> {
    if spec.requires.is_empty() {
        return Ok(());
    }
    let left = left
        .checked_sub(1)
        .ok_or_else(|| ServiceFailure(format!("the service `{}` requires others too deeply", spec.name)))?;
    spec.requires.iter().try_for_each(|required| check_depth(required, left))
}
