//! The command line.

use std::os::fd::RawFd;
use std::path::PathBuf;

use crate::error::GuestError;
use crate::shelter::{self, Shelter};
use crate::sys::Agent;

/// How the guest is called.
pub(crate) const USAGE: &str = "usage: caisson-guest serve (--listen-fd N | --listen PATH) (--state-fd N | --state DIRECTORY) \
    --workspace DIRECTORY [--home DIRECTORY] [--agent-uid N] [--agent-gid N] [--egress-port N | --egress-fd N] [--link-access user|group] \
    [--shelter DIRECTORY --readable PATH:... --devices PATH:...]\n       caisson-guest relay --socket PATH";

/// Where links arrive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// An inherited descriptor that listens already.
    Descriptor(RawFd),
    /// A socket to make.
    Path(PathBuf),
}

/// Who may connect to a socket that the guest makes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LinkAccess {
    /// The guest's own user.
    #[default]
    User,
    /// The group of the directory that the socket is in, too: a relay has a user id that nothing else has.
    Group,
}

/// Where journal and output go.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// An inherited descriptor of a directory that has no path here: what the guest runs cannot name it.
    Descriptor(RawFd),
    /// A directory.
    Path(PathBuf),
}

/// What `serve` was told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    /// Where links arrive.
    pub(crate) listen: Listen,
    /// Who may connect to a socket that is made.
    pub(crate) link_access: LinkAccess,
    /// Where journal and output go.
    pub(crate) state: State,
    /// The directory of all file requests.
    pub(crate) workspace: PathBuf,
    /// The home of what runs here, where it shall be made ready.
    pub(crate) home: Option<PathBuf>,
    /// Whom processes run as when the guest is root.
    pub(crate) agent: Agent,
    /// Where outgoing connections enter, if anywhere.
    pub(crate) egress: Option<Egress>,
    /// Set where the sandbox has no namespaces.
    pub(crate) shelter: Option<Shelter>,
}

/// Where outgoing connections enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Egress {
    /// A port to listen on.
    Port(u16),
    /// An inherited descriptor that listens already.
    Descriptor(RawFd),
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Be the guest.
    Serve(Serve),
    /// Carry a link.
    Relay {
        /// The guest's socket.
        socket: PathBuf,
    },
}

/// Reads the arguments after the program's name.
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
    shelter: Option<PathBuf>,
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
            "--shelter" => self.shelter = Some(value.into()),
            "--readable" => self.readable = shelter::paths(&value),
            "--devices" => self.devices = shelter::paths(&value),
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
            shelter: self.shelter.map(|tree| Shelter { tree, readable, devices }),
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
    fn the_line_of_the_launcher_is_understood() {
        let line = "serve --listen-fd 3 --state-fd 4 --workspace /workspace --egress-port 3128";
        let Command::Serve(serve) = parse_words(line).unwrap() else { panic!("not serve") };
        assert_eq!(serve.listen, Listen::Descriptor(3));
        assert_eq!(serve.state, State::Descriptor(4));
        assert_eq!(serve.agent, Agent { uid: 1000, gid: 1000 });
        assert_eq!(serve.egress, Some(Egress::Port(3128)));
        assert_eq!(serve.link_access, LinkAccess::User);
        assert_eq!(serve.shelter, None);
    }

    #[test]
    fn a_missing_or_wrong_option_is_named() {
        assert!(parse_words("serve --listen-fd 3").unwrap_err().to_string().contains("--state"));
        assert!(parse_words("serve --listen-fd x").unwrap_err().to_string().contains("`x`"));
        assert!(parse_words("serve --link-access all").unwrap_err().to_string().contains("`all`"));
        assert!(parse_words("serve --bad 1").unwrap_err().to_string().contains("--bad"));
    }
}
