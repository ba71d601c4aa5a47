//! The connection file of a kernel, and connections to its channels.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::files::worker::Workers;
use crate::kernels::spec::KernelSpec;
use crate::kernels::zmtp;
use crate::ports::dial_unix;
use crate::random::random_hex;

/// How long to wait before retrying a kernel that does not listen yet.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(40);
/// The folder of connection files below the agent's home, where Jupyter's tools look for them.
const RUNTIME_DIRECTORY: &str = ".local/share/jupyter/runtime";

/// A channel of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Code and its replies.
    Shell,
    /// Broadcast messages: output and status.
    Iopub,
    /// Commands that do not wait for running code.
    Control,
}

/// How to reach the channels.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Transport {
    /// Unix sockets at this path plus `-` and a number.
    Ipc(String),
    /// TCP ports on the loopback interface.
    Tcp([u16; 5]),
}

/// How to reach a kernel.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    transport: Transport,
    /// Signs messages.
    pub(crate) key: String,
    /// The connection file that the kernel reads.
    pub(crate) file: PathBuf,
    kernel: String,
}

/// A connection to a channel.
pub(crate) trait ChannelStream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> ChannelStream for T {}

impl Connection {
    /// Allocates a connection for a kernel: Unix sockets if the kernel supports them, TCP ports on loopback
    /// otherwise.
    pub(crate) async fn new(home: &Path, spec: &KernelSpec) -> io::Result<Self> {
        let key = random_hex()?;
        if spec.speaks_ipc() {
            Ok(Self::ipc(home, &spec.name, key))
        } else {
            Self::tcp(home, &spec.name, key).await
        }
    }

    fn ipc(home: &Path, kernel: &str, key: String) -> Self {
        let directory = home.join(RUNTIME_DIRECTORY);
        let sockets = directory.join(format!("caisson-{kernel}"));
        let transport = Transport::Ipc(sockets.to_string_lossy().into_owned());
        Self { transport, key, file: file_in(&directory, kernel), kernel: kernel.to_owned() }
    }

    /// Uses ports that are currently free.
    async fn tcp(home: &Path, kernel: &str, key: String) -> io::Result<Self> {
        let mut ports = [0; 5];
        let mut held = Vec::new();
        for port in &mut ports {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            *port = listener.local_addr()?.port();
            held.push(listener);
        }
        let file = file_in(&home.join(RUNTIME_DIRECTORY), kernel);
        Ok(Self { transport: Transport::Tcp(ports), key, file, kernel: kernel.to_owned() })
    }

    /// The content of the connection file.
    pub(crate) fn describe(&self) -> Value {
        let (transport, address, ports) = match &self.transport {
            Transport::Ipc(path) => ("ipc", path.as_str(), [1, 2, 3, 4, 5]),
            Transport::Tcp(ports) => ("tcp", "127.0.0.1", *ports),
        };
        let [shell, iopub, stdin, control, heartbeat] = ports;
        json!({
            "transport": transport,
            "ip": address,
            "shell_port": shell,
            "iopub_port": iopub,
            "stdin_port": stdin,
            "control_port": control,
            "hb_port": heartbeat,
            "key": self.key,
            "signature_scheme": "hmac-sha256",
            "kernel_name": self.kernel,
        })
    }

    /// Writes the connection file, readable only by the agent. Blocks: call it on a thread with the agent's
    /// permissions.
    pub(crate) fn write_file(&self) -> io::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        if let Some(directory) = self.file.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        self.remove_files();
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.file)?;
        file.write_all(self.describe().to_string().as_bytes())
    }

    /// Removes the connection file and the sockets.
    pub(crate) fn remove_files(&self) {
        let _ = std::fs::remove_file(&self.file);
        if let Transport::Ipc(path) = &self.transport {
            for number in 1..=5 {
                let _ = std::fs::remove_file(format!("{path}-{number}"));
            }
        }
    }

    /// Connects to a channel and performs the handshake. Retries until the kernel listens; the caller limits the
    /// time.
    pub(crate) async fn open(&self, workers: &Workers, channel: Channel) -> Box<dyn ChannelStream> {
        let socket =
            if channel == Channel::Iopub { zmtp::SocketType::Subscriber } else { zmtp::SocketType::Dealer };
        let mut pause = FIRST_PAUSE;
        loop {
            if let Ok(mut stream) = self.dial(workers, channel).await
                && zmtp::handshake(&mut stream, socket, b"caisson").await.is_ok()
            {
                return stream;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn dial(&self, workers: &Workers, channel: Channel) -> io::Result<Box<dyn ChannelStream>> {
        let index = match channel {
            Channel::Shell => 0,
            Channel::Iopub => 1,
            Channel::Control => 3,
        };
        match &self.transport {
            Transport::Ipc(path) => {
                let path = format!("{path}-{}", index + 1);
                // The guest may be root and still lack permission to enter the agent's home directory.
                let dialled = workers.short(move || dial_unix(&path)).await;
                let stream = dialled.map_err(|error| io::Error::other(error.message))??;
                Ok(Box::new(UnixStream::from_std(stream)?))
            }
            Transport::Tcp(ports) => {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, ports[index])).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
        }
    }
}

fn file_in(directory: &Path, kernel: &str) -> PathBuf {
    directory.join(format!("kernel-caisson-{kernel}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_file_contains_the_socket_paths() {
        let home = tempfile::tempdir().unwrap();
        let connection = Connection::ipc(home.path(), "python3", "secret".into());
        connection.write_file().unwrap();
        connection.write_file().unwrap();
        let written: Value = serde_json::from_slice(&std::fs::read(&connection.file).unwrap()).unwrap();
        assert_eq!((&written["transport"], &written["shell_port"]), (&json!("ipc"), &json!(1)));
        assert!(written["ip"].as_str().unwrap().ends_with("runtime/caisson-python3"));
        connection.remove_files();
        assert!(!connection.file.exists());
    }
}
