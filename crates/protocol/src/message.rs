//! The first message of each stream, and the replies.

use serde::{Deserialize, Serialize};

use crate::credentials::{LinkCredentials, LinkRefusal};
use crate::desktop::{DesktopRequest, DesktopSpec, GuiResult};
use crate::exec::{CallKey, CallStatus, Exec, Follow, TerminalSize};
use crate::file::{FileOperation, FileResult};
use crate::kernel::{KernelAction, KernelStatus};
use crate::service::{ServiceRequest, ServiceStatus};

/// The host's side of the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub newest_version: u16,
    pub oldest_version: u16,
    pub credentials: LinkCredentials,
}

/// The guest's reply to [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    pub newest_version: u16,
    pub oldest_version: u16,
    /// Changes when the guest restarts. Calls of an earlier boot are lost, so the host treats the sandbox as lost.
    pub boot_id: String,
    /// The version of the guest's build, for the log.
    pub build: String,
}

/// The first message on a stream that the host opens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum Request {
    /// Negotiates the link version. Reply: [`Reply::Welcome`].
    Hello(Hello),
    /// Reply: [`Reply::Done`].
    Ping,
    /// Starts a call, or follows it if the key is known. Reply: output frames and [`crate::ExecEvent`] messages, up
    /// to `Ended`.
    Exec { exec: Exec, follow: Follow },
    /// Follows a call from a sequence number. Replies like `Exec`. Refused if the key is unknown.
    Follow {
        key: CallKey,
        /// The first chunk to send.
        from_sequence: u64,
        follow: Follow,
    },
    /// Queries the state or result of a call. Reply: [`Reply::Call`].
    CallStatus { key: CallKey },
    /// Writes data frames to the call's standard input; `DataEnd` closes it. Reply after that: [`Reply::Done`].
    Input { key: CallKey },
    /// Sends a signal to the call's process group. Reply: [`Reply::Done`].
    Signal { key: CallKey, signal: i32 },
    /// Ends the call and all its processes, daemons included: SIGTERM, the call's grace period, then SIGKILL. Reply
    /// when the call has ended: [`Reply::Done`].
    Kill { key: CallKey },
    /// Resizes the call's terminal. Reply: [`Reply::Done`].
    Resize { key: CallKey, size: TerminalSize },
    /// Allows the guest to drop the output, because the host has the result in its log. The key stays used.
    Forget { key: CallKey },
    /// Performs a file operation. With a key, the guest journals it and performs it only once. Reply:
    /// [`Reply::File`].
    File {
        /// Identifies the call if the operation changes something.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<CallKey>,
        operation: FileOperation,
    },
    /// Streams a file out: [`Reply::File`] with a stat, then data frames, then `DataEnd`.
    Download {
        path: String,
        /// Offset of the first byte.
        offset: u64,
        /// Most bytes to send; all if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length: Option<u64>,
    },
    /// Streams a file in: data frames, then `DataEnd`. The file appears complete or not at all. Reply:
    /// [`Reply::File`].
    Upload {
        path: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
    },
    /// Streams the workspace or a directory in it as a tar archive: data frames, `DataEnd`, then [`Reply::File`] with
    /// `Packed`. Leaves out excluded paths, devices and sockets. Keeps symbolic links as links.
    Pack {
        /// Empty for the whole workspace.
        path: String,
        /// Relative to `path`.
        exclude: Vec<String>,
        /// Leaves out files with a larger apparent size: a sparse file can claim any size.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_file_bytes: Option<u64>,
    },
    /// Unpacks a tar archive into the workspace: data frames, then `DataEnd`. Reply: [`Reply::File`].
    Unpack {
        /// Empty for the whole workspace.
        path: String,
    },
    /// Reports changes below a directory as [`crate::WatchChange`] messages until the stream is closed.
    Watch {
        /// Empty for the whole workspace.
        path: String,
    },
    /// Connects to a port on the sandbox's loopback interface. Reply: [`Reply::Done`], then raw bytes both ways.
    Connect { port: u16 },
    /// Reply: [`Reply::Stats`].
    Stats,
    /// Lists the ports with a listener on the sandbox's loopback interface. Reply: [`Reply::Ports`].
    Ports,
    /// Lists the kernels of the image and their states. Reply: [`Reply::Kernels`].
    Kernels,
    /// Interrupts or restarts a running kernel. Reply: [`Reply::Done`].
    Kernel { name: String, action: KernelAction },
    /// A request about the desktop. [`DesktopRequest`] defines the reply.
    Desktop { desktop: DesktopSpec, order: DesktopRequest },
    /// A request about a service. [`ServiceRequest`] defines the reply.
    Service { order: ServiceRequest },
}

/// The first message on a stream that the guest opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum GuestRequest {
    /// A process in the sandbox has connected to the egress port. Raw bytes of the proxy protocol follow.
    Egress,
}

/// Replies to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Reply {
    Welcome(Welcome),
    /// The guest does not accept the link.
    LinkRefused(LinkRefusal),
    /// Success without a result.
    Done,
    /// The state or result of a call.
    Call(CallStatus),
    File(FileResult),
    Stats(GuestStats),
    /// The ports that have a listener.
    Ports {
        /// In ascending order.
        ports: Vec<u16>,
    },
    Kernels {
        /// Sorted by name.
        kernels: Vec<KernelStatus>,
    },
    Gui(GuiResult),
    Services {
        /// Sorted by name.
        services: Vec<ServiceStatus>,
    },
    /// The newest output of a service.
    ServiceLog {
        /// Bytes that are not UTF-8 are replaced.
        text: String,
    },
    /// The guest did not perform the request, for this reason.
    Refused {
        message: String,
    },
}

/// Sandbox statistics that the guest can see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestStats {
    /// Number of processes in the sandbox.
    pub processes: u32,
    /// Number of running calls.
    pub running_calls: u32,
    /// Free bytes on the workspace's disk.
    pub disk_free_bytes: u64,
    /// Size of the workspace's disk.
    pub disk_total_bytes: u64,
    /// Number of open outgoing connections.
    pub egress_connections: u32,
}
