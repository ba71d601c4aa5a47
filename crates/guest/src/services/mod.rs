//! Services: long-running programs that others use, such as the X server or a notebook server.
//!
//! A service starts on first use; concurrent users wait for the same start. It runs while a [`ServiceGuard`] exists and
//! for its idle time afterwards. If it crashes while in use, the guest restarts it. Its processes are ordinary
//! processes of the agent, and its output goes to a bounded log. [`supervise`] controls the life cycle of each
//! service.

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

use crate::resources::Resources;
use log::ServiceLog;

/// The most services with different names in one sandbox.
const MAX_SERVICES: usize = 64;
/// The maximum depth of nested requirements.
const MAX_DEPTH: usize = 4;

/// Why a service is not available, as a message for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ServiceFailure(pub(crate) String);

/// The state of a service, with the details that waiting users need.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Stopped,
    Starting,
    Running { pid: i32 },
    Restarting,
    Stopping,
    Failed(ServiceFailure),
}

/// What the supervisor should do with a running service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Control {
    Run,
    Stop,
    Restart,
}

struct Service {
    spec: RefCell<ServiceSpec>,
    phase: watch::Sender<Phase>,
    control: watch::Sender<Control>,
    users: watch::Sender<u32>,
    /// Counts signs of activity that reset the idle time without holding the service.
    touched: watch::Sender<u64>,
    log: RefCell<ServiceLog>,
    /// Wakes tasks that wait for a line of output.
    printed: watch::Sender<u64>,
    starts: Cell<u32>,
    crashes: Cell<u32>,
    message: RefCell<Option<String>>,
    /// Time of the last failure or crash, and the number of consecutive ones, which determine the back-off of the
    /// next start.
    last_failure: Cell<Option<Instant>>,
    consecutive_failures: Cell<u32>,
}

impl Service {
    fn new(spec: ServiceSpec) -> Self {
        Self {
            spec: RefCell::new(spec),
            phase: watch::Sender::new(Phase::Stopped),
            control: watch::Sender::new(Control::Run),
            users: watch::Sender::new(0),
            touched: watch::Sender::new(0),
            log: RefCell::default(),
            printed: watch::Sender::new(0),
            starts: Cell::new(0),
            crashes: Cell::new(0),
            message: RefCell::new(None),
            last_failure: Cell::new(None),
            consecutive_failures: Cell::new(0),
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

/// Keeps a service running until dropped. The service may crash and restart meanwhile.
pub(crate) struct ServiceGuard {
    service: Rc<Service>,
}

impl ServiceGuard {
    fn new(service: Rc<Service>) -> Self {
        service.users.send_modify(|users| *users += 1);
        Self { service }
    }

    /// The current process ID, if the service is running.
    #[allow(dead_code, reason = "for users inside the guest that signal their service")]
    pub(crate) fn pid(&self) -> Option<i32> {
        match *self.service.phase.borrow() {
            Phase::Running { pid } => Some(pid),
            _ => None,
        }
    }

    /// Why the service has ended for good; `None` while it is running or starting.
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

    /// Waits until the service is no longer running because it crashed or was stopped.
    #[allow(dead_code, reason = "for users inside the guest that hold more than a connection")]
    pub(crate) async fn ended(&self) {
        let mut phases = self.service.phase.subscribe();
        let _ = phases.wait_for(|phase| !matches!(phase, Phase::Running { .. })).await;
    }
}

impl Drop for ServiceGuard {
    fn drop(&mut self) {
        self.service.users.send_modify(|users| *users = users.saturating_sub(1));
    }
}

pub(crate) struct Services {
    resources: Rc<Resources>,
    table: RefCell<BTreeMap<ServiceName, Rc<Service>>>,
}

impl Services {
    pub(crate) fn new(resources: Rc<Resources>) -> Self {
        Self { resources, table: RefCell::default() }
    }

    /// Starts a service if it is not running, waits until it is ready, and keeps it running until the result is
    /// dropped.
    pub(crate) async fn acquire(self: &Rc<Self>, spec: &ServiceSpec) -> Result<ServiceGuard, ServiceFailure> {
        check_depth(spec, MAX_DEPTH)?;
        let service = self.enter(spec)?;
        // Register the use before any await, so that the supervisor sees a user.
        let held = ServiceGuard::new(Rc::clone(&service));
        // Wait for a service that is stopping.
        let _ = service.phase.subscribe().wait_for(|phase| *phase != Phase::Stopping).await;
        if !service.is_supervised() {
            *service.spec.borrow_mut() = spec.clone();
            service.control.send_replace(Control::Run);
            service.phase.send_replace(Phase::Starting);
            spawn_local(supervise::run(Rc::clone(self), Rc::clone(&service)));
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

    /// Resets the idle time of a running service. Unlike a [`ServiceGuard`], this does not start the service.
    pub(crate) fn touch(&self, name: &str) {
        let table = self.table.borrow();
        if let Some(service) = table.iter().find_map(|(key, value)| (key.as_str() == name).then_some(value)) {
            service.touched.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    pub(crate) fn is_running(&self, name: &str) -> bool {
        let runs = |service: &Service| matches!(*service.phase.borrow(), Phase::Running { .. });
        self.table.borrow().iter().any(|(key, service)| key.as_str() == name && runs(service))
    }

    /// Lists every service that was ever started.
    pub(crate) fn status(&self) -> Vec<ServiceStatus> {
        self.table.borrow().values().map(|service| service.status()).collect()
    }

    /// Returns the newest output of a service.
    pub(crate) fn log(&self, name: &ServiceName) -> Result<String, ServiceFailure> {
        Ok(self.find(name)?.log.borrow().text())
    }

    /// Stops a service. Returns when it has ended.
    pub(crate) async fn stop(&self, name: &ServiceName) -> Result<(), ServiceFailure> {
        let service = self.find(name)?;
        if service.is_supervised() {
            service.control.send_replace(Control::Stop);
        }
        let is_over = |phase: &Phase| matches!(phase, Phase::Stopped | Phase::Failed(_));
        let _ = service.phase.subscribe().wait_for(is_over).await;
        Ok(())
    }

    /// Stops and starts a service. Returns when it is ready.
    pub(crate) async fn restart(self: &Rc<Self>, name: &ServiceName) -> Result<(), ServiceFailure> {
        let service = self.find(name)?;
        if matches!(*service.phase.borrow(), Phase::Running { .. }) {
            let mut phases = service.phase.subscribe();
            service.control.send_replace(Control::Restart);
            let _ = phases.wait_for(|phase| !matches!(phase, Phase::Running { .. })).await;
            return wait_until_ready(&service).await;
        }
        let spec = service.spec.borrow().clone();
        self.acquire(&spec).await.map(drop)
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
