//! `caisson ports`

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids::{self, Target};
use crate::client::websocket;
use crate::output::table::{Cell, Table};
use crate::output::{print, print_json, say};
use crate::serve::bind::bind;

/// The maximum size of one write to a connection.
const PIECE_BYTES: usize = 32 * 1024;

/// `caisson ports`
#[derive(Debug, Args)]
#[command(after_help = "\
Open the listed address in a browser while the sandbox runs. --forward carries any TCP protocol until Ctrl-C.

Examples:
  caisson ports 1c2d4e6f
  caisson ports 1c2d4e6f --forward 5432           the same port on 127.0.0.1
  caisson ports 1c2d4e6f --forward 8080:3000      port 3000 of the sandbox on 127.0.0.1:8080")]
pub(crate) struct PortsArguments {
    /// Id or name of the job or bare sandbox.
    id: String,
    /// Forward a local port to a port of the sandbox; repeatable.
    #[arg(long, value_name = "LOCAL:REMOTE", value_parser = parse_forward)]
    forward: Vec<Forward>,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Forward {
    local: u16,
    remote: u16,
}

fn parse_forward(text: &str) -> Result<Forward> {
    let port = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => bail!("`{text}` is not a port from 1 to 65535"),
    };
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    Ok(Forward { local: port(local)?, remote: port(remote)? })
}

/// Lists ports, or forwards connections until Ctrl-C.
pub(crate) async fn run(arguments: PortsArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let target = ids::target(&client, &arguments.id).await?;
    if arguments.forward.is_empty() {
        return list(&client, &target, arguments.output).await;
    }
    let mut carried = Vec::new();
    for forward in arguments.forward {
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], forward.local)), "--forward").await?;
        say(&format!("forwarding 127.0.0.1:{} to port {} of the sandbox", forward.local, forward.remote));
        carried.push(accept(&client, &target, listener, forward.remote));
    }
    tokio::select! {
        _ = futures::future::join_all(carried) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, target: &Target, output: OutputArguments) -> Result<ExitCode> {
    let answer = client.get(&target.path("ports")).await?;
    if output.json {
        print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let ports: Vec<u64> =
        answer["ports"].as_array().into_iter().flatten().filter_map(|port| port["port"].as_u64()).collect();
    if ports.is_empty() {
        say("no open ports in the sandbox");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["PORT", "ADDRESS"]);
    for port in ports {
        let address = address(client.url(), &target.id, port).unwrap_or_default();
        table.add(vec![Cell::from(port.to_string()), Cell::from(address)]);
    }
    print(&table.show())?;
    Ok(ExitCode::SUCCESS)
}

/// The URL of a port for a browser on this machine, if the server is on this machine.
fn address(server: &str, id: &str, port: u64) -> Option<String> {
    let server = reqwest::Url::parse(server).ok()?;
    let is_here = matches!(server.host_str()?, "localhost" | "127.0.0.1" | "[::1]");
    is_here.then(|| format!("http://{id}-{port}.localhost:{}", server.port_or_known_default().unwrap_or(80)))
}

/// Forwards every connection until the listener fails. An error of one connection is printed and does not affect
/// others.
async fn accept(client: &Client, target: &Target, listener: TcpListener, remote: u16) {
    let connections =
        futures::stream::unfold(
            listener,
            |listener| async move { Some((listener.accept().await, listener)) },
        );
    connections
        .for_each_concurrent(None, |accepted| async move {
            if let Ok((connection, _)) = accepted
                && let Err(error) = carry(client, target, connection, remote).await
            {
                say(&format!("connection to port {remote}: {error:#}"));
            }
        })
        .await;
}

async fn carry(client: &Client, target: &Target, mut connection: TcpStream, remote: u16) -> Result<()> {
    connection.set_nodelay(true).context("preparing the connection")?;
    let socket = websocket::connect(client, &target.path(&format!("ports/{remote}"))).await?;
    let (mut outgoing, mut incoming) = socket.split();
    let (mut reader, mut writer) = connection.split();
    let upwards = async {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match reader.read(&mut piece).await {
                Ok(count) if count > 0 => outgoing.send(Message::binary(piece[..count].to_vec())).await?,
                _ => return outgoing.send(Message::Close(None)).await,
            }
        }
    };
    let downwards = async {
        while let Some(Ok(message)) = incoming.next().await {
            let written = match message {
                Message::Binary(bytes) => writer.write_all(&bytes).await,
                Message::Close(_) => break,
                _ => Ok(()),
            };
            if written.is_err() {
                break;
            }
        }
        let _ = writer.shutdown().await;
    };
    tokio::select! {
        sent = upwards => sent.context("lost the connection to the server")?,
        () = downwards => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_names_one_or_two_ports() {
        assert_eq!(parse_forward("80").unwrap(), Forward { local: 80, remote: 80 });
        assert_eq!(parse_forward("8080:3000").unwrap(), Forward { local: 8080, remote: 3000 });
        for text in ["", "0", "80:", "a:b", "1:2:3", "70000"] {
            assert!(parse_forward(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_are_those_of_a_server_on_this_machine() {
        let id = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
        let here = address("http://127.0.0.1:8000", id, 5173).unwrap();
        assert_eq!(here, format!("http://{id}-5173.localhost:8000"));
        assert_eq!(address("http://far.example", id, 5173), None);
    }
}
