//! The command line.

use std::os::fd::RawFd;
use std::path::PathBuf;

use crate::error::GuestError;
use crate::landlock_only::{self, LandlockOnly};
use crate::sys::Agent;

/// The usage message.
pub(crate) const USAGE: &str = "usage: caisson-guest serve (--listen-fd N | --listen PATH) (--state-fd N | --state DIRECTORY) \
    --workspace DIRECTORY [--home DIRECTORY] [--agent-uid N] [--agent-gid N] [--egress-port N | --egress-fd N] [--link-access user|group] \
    [--landlock-only DIRECTORY --readable PATH:... --devices PATH:...]\n       caisson-guest relay --socket PATH";

/// Where the guest accepts links.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// An inherited file descriptor that already listens.
    Descriptor(RawFd),
    /// A Unix socket to create.
    Path(PathBuf),
}

/// Who may connect to a socket that the guest creates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LinkAccess {
    /// The guest's own user.
    #[default]
    User,
    /// Also the group of the socket's directory, because a relay runs under a separate user ID.
    Group,
}

/// Where the guest keeps the journal and the output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// An inherited descriptor of a directory without a path in the sandbox, so that programs in the sandbox cannot
    /// name it.
    Descriptor(RawFd),
    Path(PathBuf),
}

/// The options of `serve`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    pub(crate) listen: Listen,
    /// Who may connect to a socket that the guest creates.
    pub(crate) link_access: LinkAccess,
    pub(crate) state: State,
    /// The root of all file requests.
    pub(crate) workspace: PathBuf,
    /// The home directory to set up for the agent, if any.
    pub(crate) home: Option<PathBuf>,
    /// The user that processes run as if the guest is root.
    pub(crate) agent: Agent,
    /// Where the guest accepts outgoing connections, if anywhere.
    pub(crate) egress: Option<Egress>,
    /// Set if the sandbox has no namespaces.
    pub(crate) landlock_only: Option<LandlockOnly>,
}

/// Where the guest accepts outgoing connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Egress {
    /// A TCP port to listen on.
    Port(u16),
    /// An inherited file descriptor that already listens.
    Descriptor(RawFd),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Run as the guest.
    Serve(Serve),
    /// Forward a link.
    Relay {
        /// The guest's socket.
        socket: PathBuf,
    },
}

/// Parses the arguments after the program name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, GuestError> {
    let mut arguments = arguments.into_iter();
    let command = arguments.next().ok_or_else(|| GuestError::Usage(USAGE.to_owned()))?;
    let mut options = Options::default();
    while let Some(name) = arguments.next() {
        let value =
            arguments.next().ok_or_else(|| GuestError::Usage(format!("{name} needs a value\n{USAGE}")))?;
        options.take(&name, value)?;
    }
    match command.as_str() {
        "serve" => options.serve().map(Command::Serve),
        "relay" => Ok(Command::Relay { socket: required("--socket", options.socket)? }),
        other => Err(GuestError::Usage(format!("unknown command {other}\n{USAGE}"))),
    }
}

#[derive(Default)]
struct Options {
    listen: Option<Listen>,
    link_access: LinkAccess,
    state: Option<State>,
    workspace: Option<PathBuf>,
    home: Option<PathBuf>,
    socket: Option<PathBuf>,
    agent_uid: Option<u32>,
    agent_gid: Option<u32>,
    egress: Option<Egress>,
    landlock_only: Option<PathBuf>,
    readable: Vec<PathBuf>,
    devices: Vec<PathBuf>,
}

impl Options {
    fn take(&mut self, name: &str, value: String) -> Result<(), GuestError> {
        match name {
            "--listen-fd" => self.listen = Some(Listen::Descriptor(number(name, &value)?)),
            "--listen" => self.listen = Some(Listen::Path(value.into())),
            "--link-access" => self.link_access = link_access(&value)?,
            "--state-fd" => self.state = Some(State::Descriptor(number(name, &value)?)),
            "--state" => self.state = Some(State::Path(value.into())),
            "--workspace" => self.workspace = Some(value.into()),
            "--home" => self.home = Some(value.into()),
            "--socket" => self.socket = Some(value.into()),
            "--agent-uid" => self.agent_uid = Some(number(name, &value)?),
            "--agent-gid" => self.agent_gid = Some(number(name, &value)?),
            "--egress-port" => self.egress = Some(Egress::Port(number(name, &value)?)),
            "--egress-fd" => self.egress = Some(Egress::Descriptor(number(name, &value)?)),
            "--landlock-only" => self.landlock_only = Some(value.into()),
            "--readable" => self.readable = landlock_only::paths(&value),
            "--devices" => self.devices = landlock_only::paths(&value),
            _ => return Err(GuestError::Usage(format!("unknown option {name}\n{USAGE}"))),
        }
        Ok(())
    }

    fn serve(self) -> Result<Serve, GuestError> {
        let (readable, devices) = (self.readable, self.devices);
        Ok(Serve {
            listen: required("--listen-fd or --listen", self.listen)?,
            link_access: self.link_access,
            state: required("--state-fd or --state", self.state)?,
            workspace: required("--workspace", self.workspace)?,
            home: self.home,
            agent: Agent { uid: self.agent_uid.unwrap_or(1000), gid: self.agent_gid.unwrap_or(1000) },
            egress: self.egress,
            landlock_only: self.landlock_only.map(|tree| LandlockOnly { tree, readable, devices }),
        })
    }
}

fn required<T>(name: &str, value: Option<T>) -> Result<T, GuestError> {
    value.ok_or_else(|| GuestError::Usage(format!("{name} is missing\n{USAGE}")))
}

fn link_access(value: &str) -> Result<LinkAccess, GuestError> {
    match value {
        "user" => Ok(LinkAccess::User),
        "group" => Ok(LinkAccess::Group),
        _ => Err(GuestError::Usage(format!("--link-access: `{value}` is neither user nor group\n{USAGE}"))),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, GuestError> {
    value
        .parse()
        .map_err(|_| GuestError::Usage(format!("{name}: `{value}` is not a number in range\n{USAGE}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(line: &str) -> Result<Command, GuestError> {
        parse(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn launcher_command_line_is_parsed() {
        let line = "serve --listen-fd 3 --state-fd 4 --workspace /workspace --egress-port 3128";
        let Command::Serve(serve) = parse_words(line).unwrap() else { panic!("not serve") };
        assert_eq!(serve.listen, Listen::Descriptor(3));
        assert_eq!(serve.state, State::Descriptor(4));
        assert_eq!(serve.agent, Agent { uid: 1000, gid: 1000 });
        assert_eq!(serve.egress, Some(Egress::Port(3128)));
        assert_eq!(serve.link_access, LinkAccess::User);
        assert_eq!(serve.landlock_only, None);
    }

    #[test]
    fn a_missing_or_wrong_option_is_named() {
        assert!(parse_words("serve --listen-fd 3").unwrap_err().to_string().contains("--state"));
        assert!(parse_words("serve --listen-fd x").unwrap_err().to_string().contains("`x`"));
        assert!(parse_words("serve --link-access all").unwrap_err().to_string().contains("`all`"));
        assert!(parse_words("serve --bad 1").unwrap_err().to_string().contains("--bad"));
    }
}
