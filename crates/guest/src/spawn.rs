//! Turns a request into a running process: program, environment and file descriptors.
//!
//! Errors here, or in the child before its program runs, are messages for the user.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;

use protocol::{CallKey, Exec, NotStarted, NotStartedCause, OutputStream, Program};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use tokio::io::unix::AsyncFd;

use crate::forker::Forker;
use crate::landlock_only::LandlockOnly;
use crate::process_mark::ProcessMark;
use crate::sys::{self, Agent, ChildPlan, REPORT_BYTES, Stage, StartFailure, Terminal};
use crate::terminal;

/// Capacity of an output pipe. A larger pipe needs fewer wake-ups if a process prints much.
const OUTPUT_PIPE_BYTES: usize = 256 * 1024;
/// The search path if the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A file descriptor registered with the event loop.
pub(crate) type PolledFd = Rc<AsyncFd<OwnedFd>>;

/// A forked process. `report` tells whether its program has started.
pub(crate) struct Spawned {
    /// Process ID, process group and session at once.
    pub(crate) pid: Pid,
    /// Identifies the process and its descendants.
    pub(crate) mark: ProcessMark,
    /// The writer for standard input. If the process has a terminal, this is the terminal's master side.
    pub(crate) input: Option<PolledFd>,
    /// The readers for its output.
    pub(crate) outputs: Vec<(OutputStream, PolledFd)>,
    /// The master side of its terminal.
    pub(crate) terminal: Option<PolledFd>,
    /// Closes when the program runs. Otherwise it carries the failure; see [`explain`].
    pub(crate) report: AsyncFd<OwnedFd>,
}

/// The settings that are the same for all processes.
pub(crate) struct Spawner {
    /// The user that children run as; `None` for the guest's own user.
    pub(crate) agent: Option<Agent>,
    pub(crate) forker: Forker,
    /// The default working directory.
    pub(crate) directory: String,
    /// `/dev/null`, with a descriptor above 2.
    pub(crate) null: OwnedFd,
    /// Set if the sandbox has no namespaces. Paths are then translated.
    pub(crate) landlock_only: Option<LandlockOnly>,
}

impl Spawner {
    /// Forks a child. The error has a message for the user.
    pub(crate) fn spawn(&self, exec: &Exec) -> Result<Spawned, NotStarted> {
        let other = |message| NotStarted::new(NotStartedCause::Other, message);
        let directory = self.directory_of(exec);
        if !directory.starts_with('/') {
            let message = format!("the working directory `{directory}` is not absolute");
            return Err(NotStarted::new(NotStartedCause::BadDirectory, message));
        }
        let plan = self.plan(exec, directory).map_err(other)?;
        self.spawn_plan(exec, plan).map_err(|error| other(explain_fork(&error)))
    }

    fn directory_of(&self, exec: &Exec) -> String {
        let requested = exec.directory.as_deref().unwrap_or(&self.directory);
        match &self.landlock_only {
            Some(landlock_only) => landlock_only.translate(requested),
            None => requested.to_owned(),
        }
    }

    fn plan(&self, exec: &Exec, directory: String) -> Result<ChildPlan, String> {
        let variables = match &self.landlock_only {
            Some(landlock_only) => &landlock_only.translate_variables(&exec.environment),
            None => &exec.environment,
        };
        let (programs, arguments) = match &exec.program {
            Program::Shell(command) => shell(command),
            Program::Arguments(arguments) => {
                let name = arguments.first().filter(|name| !name.is_empty()).ok_or("no program was named")?;
                (candidates(name, variables), arguments.clone())
            }
            Program::Cell(_) => return Err("a cell is no process".to_owned()),
        };
        Ok(ChildPlan {
            programs: c_strings("the program's name", programs)?,
            arguments: c_strings("an argument", arguments)?,
            environment: environment(&exec.key, variables)?,
            directory: c_string("the working directory", directory)?,
            terminal: if exec.terminal.is_some() { Terminal::Controlling } else { Terminal::None },
            agent: self.agent,
            mark: ProcessMark::random().map_err(|error| format!("reading random bytes: {error}"))?,
        })
    }

    fn spawn_plan(&self, exec: &Exec, plan: ChildPlan) -> io::Result<Spawned> {
        let (report, report_writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let report = sys::register(report)?;
        let mark = plan.mark;
        if let Some(size) = exec.terminal {
            let (master, slave) = terminal::open(size, self.agent)?;
            let master = Rc::new(sys::register(master)?);
            let pid = self.forker.fork(plan, [slave.as_raw_fd(); 3], report_writer.as_raw_fd())?;
            return Ok(Spawned {
                pid,
                mark,
                input: Some(Rc::clone(&master)),
                outputs: vec![(OutputStream::Terminal, Rc::clone(&master))],
                terminal: Some(master),
                report,
            });
        }
        let (stdout, stdout_writer) = output_pipe()?;
        let (stderr, stderr_writer) = output_pipe()?;
        let input = if exec.stdin.is_some() || exec.keep_stdin_open { Some(input_pipe()?) } else { None };
        let stdin = input.as_ref().map_or(&self.null, |(reader, _)| reader);
        let stdio = [stdin, &stdout_writer, &stderr_writer].map(AsRawFd::as_raw_fd);
        let pid = self.forker.fork(plan, stdio, report_writer.as_raw_fd())?;
        let outputs = vec![(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)];
        Ok(Spawned { pid, mark, input: input.map(|(_, writer)| writer), outputs, terminal: None, report })
    }
}

/// Creates a pipe with a nonblocking reading end for the guest and an ordinary writing end for the process.
fn output_pipe() -> io::Result<(PolledFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // Fails if the user has too many pages in pipes. The pipe then keeps its default size.
    let _ = rustix::pipe::fcntl_setpipe_size(&reader, OUTPUT_PIPE_BYTES);
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((Rc::new(sys::register(reader)?), writer))
}

fn input_pipe() -> io::Result<(OwnedFd, PolledFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&writer, true)?;
    Ok((reader, Rc::new(sys::register(writer)?)))
}

/// Small images lack bash.
fn shell_name() -> &'static str {
    if Path::new("/bin/bash").exists() { "bash" } else { "sh" }
}

fn shell(command: &str) -> (Vec<String>, Vec<String>) {
    let shell = shell_name();
    (vec![format!("/bin/{shell}")], vec![shell.to_owned(), "-c".to_owned(), command.to_owned()])
}

fn candidates(name: &str, environment: &BTreeMap<String, String>) -> Vec<String> {
    if name.contains('/') {
        return vec![name.to_owned()];
    }
    let path = environment.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    path.split(':')
        .filter(|directory| !directory.is_empty())
        .map(|directory| format!("{directory}/{name}"))
        .collect()
}

/// Whether a program with this name can be started.
pub(crate) fn is_installed(name: &str, environment: &BTreeMap<String, String>) -> bool {
    let is_program = |path: &String| {
        std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    candidates(name, environment).iter().any(is_program)
}

fn environment(key: &CallKey, variables: &BTreeMap<String, String>) -> Result<Vec<CString>, String> {
    if let Some(name) = variables.keys().find(|name| name.is_empty() || name.contains('=')) {
        return Err(format!("`{name}` cannot be the name of a variable"));
    }
    // The host does not know whether the image has bash.
    let has_shell = variables.get("SHELL").is_none_or(|shell| Path::new(shell).exists());
    let given = variables.iter().filter(|(name, _)| *name != "CAISSON_CALL").map(|(name, value)| {
        if name == "SHELL" && !has_shell { "SHELL=/bin/sh".to_owned() } else { format!("{name}={value}") }
    });
    c_strings("a variable", given.chain([format!("CAISSON_CALL={key}")]))
}

fn c_strings(what: &str, strings: impl IntoIterator<Item = String>) -> Result<Vec<CString>, String> {
    strings.into_iter().map(|string| c_string(what, string)).collect()
}

fn c_string(what: &str, string: String) -> Result<CString, String> {
    CString::new(string).map_err(|_| format!("{what} has a NUL byte"))
}

fn explain_fork(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => "the sandbox's process limit is reached".to_owned(),
        Some(libc::ENOMEM) => "the sandbox's memory is used up".to_owned(),
        Some(libc::EMFILE | libc::ENFILE) => "too many files are open in the sandbox".to_owned(),
        Some(libc::ENOSPC) => "the sandbox has no free terminal".to_owned(),
        _ => format!("the process could not be made: {error}"),
    }
}

/// For a program whose loader is missing, the kernel returns the same error as for a missing program.
fn explain_missing(exec: &Exec, program: &str) -> String {
    let is_shell = matches!(exec.program, Program::Shell(_));
    let path = if is_shell { format!("/bin/{}", shell_name()) } else { program.to_owned() };
    if path.starts_with('/') && Path::new(&path).exists() {
        return format!(
            "`{path}` is there but cannot be run: what it needs to start (its loader or interpreter) is missing in this image"
        );
    }
    if is_shell {
        return "this image has no shell: neither /bin/bash nor /bin/sh is there".to_owned();
    }
    format!("`{program}` was not found")
}

/// Returns why the program did not start, or `None` if it runs.
pub(crate) async fn read_report(report: &AsyncFd<OwnedFd>) -> Option<StartFailure> {
    let mut bytes = [0u8; REPORT_BYTES];
    loop {
        let Ok(mut guard) = report.readable().await else { return None };
        match guard.try_io(|fd| Ok(rustix::io::read(fd, &mut bytes)?)) {
            Ok(Ok(count)) => return sys::decode_report(bytes.get(..count).unwrap_or_default()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(_)) => return None,
            Err(_would_block) => {}
        }
    }
}

/// Explains to the user why a program did not start.
pub(crate) fn explain(exec: &Exec, default_directory: &str, failure: &StartFailure) -> NotStarted {
    let directory = exec.directory.as_deref().unwrap_or(default_directory);
    let program = match &exec.program {
        Program::Shell(_) | Program::Cell(_) => "sh",
        Program::Arguments(arguments) => arguments.first().map_or("", String::as_str),
    };
    let (cause, message) = match (failure.stage, failure.error.raw_os_error()) {
        (Stage::Directory, errno) => {
            let problem = match errno {
                Some(libc::ENOENT) => "was not found".to_owned(),
                Some(libc::ENOTDIR) => "is no directory".to_owned(),
                _ => format!("cannot be entered: {}", failure.error),
            };
            (NotStartedCause::BadDirectory, format!("the working directory `{directory}` {problem}"))
        }
        (Stage::Program, Some(libc::ENOENT)) => {
            (NotStartedCause::ProgramNotFound, explain_missing(exec, program))
        }
        (Stage::Program, Some(libc::EACCES)) => {
            (NotStartedCause::ProgramNotExecutable, format!("`{program}` is not executable"))
        }
        (Stage::Program, Some(libc::ENOEXEC)) => (
            NotStartedCause::ProgramNotExecutable,
            format!("`{program}` is neither a program for this machine nor a script with a `#!` line"),
        ),
        (Stage::Program, Some(libc::E2BIG)) => (
            NotStartedCause::ArgumentsTooLong,
            "the arguments and the environment are too long together".to_owned(),
        ),
        (Stage::Program, errno) => (
            NotStartedCause::Other,
            match errno {
                Some(libc::EAGAIN) => "the sandbox's process limit is reached".to_owned(),
                Some(libc::ENOMEM) => "the sandbox's memory is used up".to_owned(),
                _ => format!("`{program}` could not be started: {}", failure.error),
            },
        ),
        (Stage::Setup, _) => {
            (NotStartedCause::Other, format!("the process could not be set up: {}", failure.error))
        }
    };
    NotStarted { cause, message }
}
