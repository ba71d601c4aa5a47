//! Kernels: processes that run code and keep its variables. A kernel starts at its first cell and runs until the
//! sandbox ends, a client restarts it, or it dies. The next cell restarts a kernel that died, and its result notes
//! that the variables are lost.

pub(crate) mod cell;
mod connect;
mod displays;
mod kernel;
mod notebook;
pub(crate) mod provisioner;
mod spec;
mod text;
mod wire;
mod zmtp;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;

use protocol::{KernelAction, KernelState, KernelStatus, Reply};
use tokio::sync::Mutex;

use crate::kernels::connect::Connection;
use crate::kernels::kernel::{Kernel, State};
use crate::kernels::notebook::Notebooks;
use crate::kernels::spec::KernelSpec;
use crate::resources::Resources;

/// The agent's home directory, unless `HOME` is set.
const HOME: &str = "/home/agent";

/// One kernel across its restarts.
#[derive(Default)]
struct KernelSlot {
    /// Locked while the kernel starts.
    running: Mutex<Option<Rc<Kernel>>>,
    /// How often the kernel has been started.
    generation: Cell<u64>,
    /// Stays the same across restarts, so that a connected notebook finds the kernel again.
    connection: RefCell<Option<Connection>>,
}

impl KernelSlot {
    async fn start(
        &self,
        resources: &Rc<Resources>,
        spec: KernelSpec,
        environment: BTreeMap<String, String>,
    ) -> Result<Rc<Kernel>, String> {
        self.generation.set(self.generation.get() + 1);
        let known = self.connection.borrow().clone();
        let connection = match known {
            Some(connection) => connection,
            None => {
                let home = environment.get("HOME").map_or(HOME, String::as_str);
                let made = Connection::new(Path::new(home), &spec).await;
                made.map_err(|error| format!("finding ports for the kernel {}: {error}", spec.name))?
            }
        };
        self.connection.replace(Some(connection.clone()));
        Kernel::start(resources, spec, environment, connection, self.generation.get()).await
    }
}

/// All kernels of the sandbox.
pub(crate) struct Kernels {
    resources: Rc<Resources>,
    slots: RefCell<HashMap<String, Rc<KernelSlot>>>,
    /// Records the cells for people to read.
    notebooks: Notebooks,
}

impl Kernels {
    pub(crate) fn new(resources: Rc<Resources>) -> Self {
        Self { resources, slots: RefCell::default(), notebooks: Notebooks::default() }
    }

    fn slot(&self, name: &str) -> Rc<KernelSlot> {
        Rc::clone(self.slots.borrow_mut().entry(name.to_owned()).or_default())
    }

    /// Returns the kernel and a note for the result of the cell. Starts the kernel if it is not running.
    async fn get_or_start(
        &self,
        spec: &KernelSpec,
        environment: BTreeMap<String, String>,
    ) -> Result<(Rc<Kernel>, Option<String>), String> {
        let slot = self.slot(&spec.name);
        let mut running = slot.running.lock().await;
        let died = match &*running {
            Some(kernel) => match kernel.state.borrow().death() {
                None => return Ok((Rc::clone(kernel), kernel.note.take())),
                Some(how) => Some(how.to_owned()),
            },
            None => None,
        };
        let note =
            died.map(|how| format!("the kernel was restarted, variables of earlier cells are lost: {how}"));
        let kernel = slot.start(&self.resources, spec.clone(), environment).await?;
        *running = Some(Rc::clone(&kernel));
        Ok((kernel, note))
    }

    fn running(&self, name: &str) -> Option<Rc<Kernel>> {
        let slot = self.slots.borrow().get(name).cloned()?;
        let running = slot.running.try_lock().ok()?;
        running.clone().filter(|kernel| kernel.state.borrow().death().is_none())
    }

    fn is_starting(&self, name: &str) -> bool {
        self.slots.borrow().get(name).is_some_and(|slot| slot.running.try_lock().is_err())
    }

    /// Lists the kernels of the image and their states.
    pub(crate) fn list(&self) -> Reply {
        let kernels = spec::find_all(Path::new(HOME))
            .into_iter()
            .map(|spec| {
                let running = self.running(&spec.name);
                let state = match &running {
                    Some(kernel) if *kernel.state.borrow() == State::Busy => KernelState::Busy,
                    Some(_) => KernelState::Idle,
                    None if self.is_starting(&spec.name) => KernelState::Starting,
                    None => KernelState::NotStarted,
                };
                let cells = running.map_or(0, |kernel| kernel.cells.get());
                KernelStatus {
                    name: spec.name,
                    display_name: spec.display_name,
                    language: spec.language,
                    state,
                    cells,
                }
            })
            .collect();
        Reply::Kernels { kernels }
    }

    /// Interrupts or restarts a kernel.
    pub(crate) async fn act(&self, name: &str, action: KernelAction) -> Reply {
        let Some(kernel) = self.running(name) else {
            return Reply::Refused { message: format!("the kernel `{name}` does not run") };
        };
        match action {
            KernelAction::Interrupt => kernel.interrupt().await,
            KernelAction::Restart => {
                kernel.end("it was restarted on request").await;
                let environment = kernel.environment.clone();
                // Inform the next cell, because its author may not have requested the restart.
                let slot = self.slot(name);
                let mut running = slot.running.lock().await;
                let is_same = running.as_ref().is_some_and(|current| Rc::ptr_eq(current, &kernel));
                if is_same {
                    match slot.start(&self.resources, kernel.spec.clone(), environment).await {
                        Ok(started) => {
                            started.note.replace(Some(
                                "the kernel was restarted on request, variables of earlier cells are lost"
                                    .into(),
                            ));
                            *running = Some(started);
                        }
                        Err(message) => return Reply::Refused { message },
                    }
                }
            }
        }
        Reply::Done
    }
}
