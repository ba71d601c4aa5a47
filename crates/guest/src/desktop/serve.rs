//! Serves the host's desktop requests.

use std::io;
use std::rc::Rc;

use protocol::{
    CallKey, DesktopRequest, DesktopSpec, GuiAction, GuiError, GuiResult, MessageStream, ProtocolError,
    Reply, ServiceName,
};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::UnixStream;

use super::{
    Desktop, DesktopGuard, X_SERVER, acquire, act, keep_browser_active, on_display, vnc_folder, vnc_socket,
};
use crate::journal::Call;
use crate::ports::{COPY_BYTES, dial_unix};
use crate::reply::send_reply;

pub(crate) async fn serve(
    desktop: &Rc<Desktop>,
    mut stream: MessageStream,
    spec: DesktopSpec,
    order: DesktopRequest,
) -> Result<(), ProtocolError> {
    match order {
        DesktopRequest::Start => {
            let reply = match acquire(desktop, &spec).await {
                Ok(_) => Reply::Done,
                Err(error) => Reply::Refused { message: error.message },
            };
            send_reply(&mut stream, &reply).await
        }
        DesktopRequest::OpenVnc => open_vnc(desktop, stream, &spec).await,
        DesktopRequest::Act { key, action } => act_once(desktop, stream, spec, key, action).await,
    }
}

async fn open_vnc(
    desktop: &Rc<Desktop>,
    mut stream: MessageStream,
    spec: &DesktopSpec,
) -> Result<(), ProtocolError> {
    let (held, mut connection) = match reach_vnc(desktop, spec).await {
        Ok(reached) => reached,
        Err(message) => return send_reply(&mut stream, &Reply::Refused { message }).await,
    };
    stream.send(&Reply::Done).await?;
    let mut stream = stream.into_raw();
    let copying = copy_bidirectional_with_sizes(&mut connection, &mut stream, COPY_BYTES, COPY_BYTES);
    let copied = keep_browser_active(desktop, spec, copying).await;
    drop(held);
    copied?;
    Ok(())
}

/// Connects to the VNC server. If the job has removed the socket, restarts the X server, but only if no window is
/// open.
async fn reach_vnc(desktop: &Rc<Desktop>, spec: &DesktopSpec) -> Result<(DesktopGuard, UnixStream), String> {
    let explain = |error: GuiError| error.message;
    let held = acquire(desktop, spec).await.map_err(explain)?;
    let failed = |error: io::Error| format!("connecting to the VNC server: {error}");
    let is_gone = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    };
    match dial_vnc(desktop, spec).await {
        Ok(connection) => return Ok((held, connection)),
        Err(error) if is_gone(&error) => {}
        Err(error) => return Err(failed(error)),
    }
    let windows = on_display(desktop, |display| display.windows()).await.map_err(explain)?;
    if !windows.is_empty() {
        let socket = vnc_socket(spec);
        return Err(format!(
            "the job has removed the desktop's socket {socket}; it is made again when no window is open"
        ));
    }
    drop(held);
    let folder = vnc_folder(spec);
    let _ = desktop.resources.files.workers.short(move || std::fs::create_dir_all(folder)).await;
    desktop.services.restart(&ServiceName::fixed(X_SERVER)).await.map_err(|failure| failure.0)?;
    let held = acquire(desktop, spec).await.map_err(explain)?;
    let connection = dial_vnc(desktop, spec).await.map_err(failed)?;
    Ok((held, connection))
}

async fn dial_vnc(desktop: &Desktop, spec: &DesktopSpec) -> io::Result<UnixStream> {
    let socket = vnc_socket(spec);
    // The guest may be root and still lack permission to enter the agent's home directory.
    let dialled = desktop.resources.files.workers.short(move || dial_unix(&socket)).await;
    UnixStream::from_std(dialled.map_err(|error| io::Error::other(error.message))??)
}

/// Performs an action. With a key, it is performed only once, and it completes even if the link breaks.
async fn act_once(
    desktop: &Rc<Desktop>,
    mut stream: MessageStream,
    spec: DesktopSpec,
    key: Option<CallKey>,
    action: GuiAction,
) -> Result<(), ProtocolError> {
    let Some(key) = key else {
        let (result, image) = do_now(desktop, &spec, action).await;
        return send(&mut stream, result, &image).await;
    };
    let call = match desktop.resources.journal.find(&key) {
        Some(Call::Gui(call)) => call,
        Some(_) => {
            let message = format!("the key {key} belongs to something else");
            return send_reply(&mut stream, &Reply::Refused { message }).await;
        }
        None => {
            let call = desktop.resources.journal.add_gui_call(&key, &action);
            let (desktop, doing) = (Rc::clone(desktop), Rc::clone(&call));
            tokio::task::spawn_local(async move {
                let (result, image) = do_now(&desktop, &spec, action).await;
                desktop.resources.journal.record_gui_result(&doing.key, &result);
                doing.finish(result, &image);
            });
            call
        }
    };
    let (result, image) = call.result().await;
    send(&mut stream, result, &image).await
}

async fn do_now(desktop: &Rc<Desktop>, spec: &DesktopSpec, action: GuiAction) -> (GuiResult, Vec<u8>) {
    match keep_browser_active(desktop, spec, Box::pin(act::act(desktop, spec, action))).await {
        Ok((reply, image)) => (GuiResult::Ok(reply), image),
        Err(error) => (GuiResult::Error(error), Vec::new()),
    }
}

async fn send(stream: &mut MessageStream, result: GuiResult, image: &[u8]) -> Result<(), ProtocolError> {
    stream.send(&Reply::Gui(result)).await?;
    if !image.is_empty() {
        stream.send_data(image).await?;
        stream.send_data_end().await?;
    }
    stream.close().await
}
