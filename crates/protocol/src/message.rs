//! The first message of each stream, and the small answers.

use serde::{Deserialize, Serialize};

use crate::desktop::{DesktopOrder, DesktopSpec, GuiResult};
use crate::exec::{CallKey, CallStatus, Exec, Follow, TerminalSize};
use crate::file::{FileOperation, FileResult};
use crate::kernel::{KernelAction, KernelStatus};
use crate::service::{ServiceOrder, ServiceStatus};

/// The host's greeting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Newest version that the host speaks.
    pub newest_version: u16,
    /// Oldest version that the host speaks.
    pub oldest_version: u16,
}

/// The guest's answer to the greeting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Newest version that the guest speaks.
    pub newest_version: u16,
    /// Oldest version that the guest speaks.
    pub oldest_version: u16,
    /// Changes when the guest was started anew; calls of an earlier life are lost.
    pub boot_id: String,
    /// The guest's build, for the log.
    pub build: String,
}

/// What the host asks on a stream that it opens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum Request {
    /// Settles the version. Answer: [`Reply::Welcome`].
    Hello(Hello),
    /// Answer: [`Reply::Done`].
    Ping,
    /// Starts a call, or follows it where the key is known. Answer: output frames and
    /// [`crate::ExecEvent`] messages until `Ended`.
    Exec {
        /// The process.
        exec: Exec,
        /// Which output is wanted.
        follow: Follow,
    },
    /// Follows a call from a sequence number. Same answer as `Exec`; an unknown key is refused.
    Follow {
        /// The call.
        key: CallKey,
        /// First chunk wanted.
        from_sequence: u64,
        /// Which output is wanted.
        follow: Follow,
    },
    /// What became of a call? Answer: [`Reply::Call`].
    CallStatus {
        /// The call.
        key: CallKey,
    },
    /// Data frames go to the call's standard input; `DataEnd` closes it. Answer at the end: [`Reply::Done`].
    Input {
        /// The call.
        key: CallKey,
    },
    /// Sends a signal to the call's process group. Answer: [`Reply::Done`].
    Signal {
        /// The call.
        key: CallKey,
        /// Signal number.
        signal: i32,
    },
    /// Ends the call: SIGTERM, the call's grace, then SIGKILL, to the whole tree. Answer when it has ended.
    Kill {
        /// The call.
        key: CallKey,
    },
    /// Changes the size of the call's terminal. Answer: [`Reply::Done`].
    Resize {
        /// The call.
        key: CallKey,
        /// New size.
        size: TerminalSize,
    },
    /// The host has the result in its log: the guest may drop the output. The key stays used.
    Forget {
        /// The call.
        key: CallKey,
    },
    /// A file operation; with a key it is journalled and done once. Answer: [`Reply::File`].
    File {
        /// Names the call where the operation changes something.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<CallKey>,
        /// The operation.
        operation: FileOperation,
    },
    /// Streams a file: [`Reply::File`] with a stat, then data frames, then `DataEnd`.
    Download {
        /// The file.
        path: String,
        /// First byte.
        offset: u64,
        /// Most bytes, all when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length: Option<u64>,
    },
    /// Streams a file in: data frames, `DataEnd`; it appears as a whole or not at all. Answer: [`Reply::File`].
    Upload {
        /// The file.
        path: String,
        /// Permission bits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
    },
    /// The workspace, or a directory in it, as a tar stream: data frames, `DataEnd`, then [`Reply::File`] `Packed`.
    /// Excluded paths, devices and sockets are left out; links stay links.
    Pack {
        /// The directory, empty for the whole workspace.
        path: String,
        /// Paths relative to `path`.
        exclude: Vec<String>,
        /// Files that claim to be larger are left out: a file with holes may claim any size.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_file_bytes: Option<u64>,
    },
    /// Unpacks a tar stream into the workspace: data frames, `DataEnd`. Answer: [`Reply::File`].
    Unpack {
        /// The directory, empty for the whole workspace.
        path: String,
    },
    /// Reports changes below a directory as [`crate::WatchChange`] messages until the stream is closed.
    Watch {
        /// The directory, empty for the whole workspace.
        path: String,
    },
    /// Connects to a port on the sandbox's loopback. Answer: [`Reply::Done`], then raw bytes both ways.
    Connect {
        /// The port.
        port: u16,
    },
    /// Answer: [`Reply::Stats`].
    Stats,
    /// What listens on the sandbox's loopback. Answer: [`Reply::Ports`].
    Ports,
    /// Which kernels the image has, and which of them run. Answer: [`Reply::Kernels`].
    Kernels,
    /// Does something to a kernel that runs. Answer: [`Reply::Done`].
    Kernel {
        /// Its name.
        name: String,
        /// What.
        action: KernelAction,
    },
    /// Something about the desktop; the order says what is answered.
    Desktop {
        /// How it shall be.
        desktop: DesktopSpec,
        /// What to do.
        order: DesktopOrder,
    },
    /// Something about a service; the order says what is answered.
    Service {
        /// What to do.
        order: ServiceOrder,
    },
}

/// What the guest asks on a stream that it opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum GuestRequest {
    /// Something in the sandbox has connected to the egress entrance; raw bytes of the proxy protocol follow.
    Egress,
}

/// Small answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Reply {
    /// The greeting.
    Welcome(Welcome),
    /// Done, nothing to say.
    Done,
    /// What became of a call.
    Call(CallStatus),
    /// Result of a file operation.
    File(FileResult),
    /// Figures.
    Stats(GuestStats),
    /// What listens, in ascending order.
    Ports {
        /// Port numbers.
        ports: Vec<u16>,
    },
    /// Kernels by name.
    Kernels {
        /// Each with its state.
        kernels: Vec<KernelStatus>,
    },
    /// Result of an action on the desktop.
    Gui(GuiResult),
    /// Services, by name.
    Services {
        /// Facts.
        services: Vec<ServiceStatus>,
    },
    /// The newest output of a service.
    ServiceLog {
        /// Bytes that are not UTF-8 are replaced.
        text: String,
    },
    /// Not done; the text says why.
    Refused {
        /// For people.
        message: String,
    },
}

/// Figures that the guest can see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestStats {
    /// Processes in the sandbox.
    pub processes: u32,
    /// Calls that run.
    pub running_calls: u32,
    /// Free bytes on the workspace's disk.
    pub disk_free_bytes: u64,
    /// Size of the workspace's disk.
    pub disk_total_bytes: u64,
    /// Open outgoing connections.
    pub egress_connections: u32,
}
