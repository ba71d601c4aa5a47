//! The host's side of the desktop requests.

use bytes::{Bytes, BytesMut};

use crate::client::{GuestClient, check_refused, unexpected};
use crate::desktop::{DesktopRequest, DesktopSpec, GuiAction, GuiReply, GuiResult};
use crate::error::ProtocolError;
use crate::exec::CallKey;
use crate::message::{Reply, Request};
use crate::stream::{ByteStream, Incoming, MessageStream};

/// The largest image that the host accepts. It limits what a compromised guest can make the host buffer.
pub const MAX_IMAGE_BYTES: usize = 32 * 1024 * 1024;

impl GuestClient {
    /// Starts the desktop if it is not running. Returns when the window manager is up.
    ///
    /// # Errors
    /// The desktop could not be started, or the link is broken.
    pub async fn start_desktop(&self, desktop: DesktopSpec) -> Result<(), ProtocolError> {
        match self.send_request(&Request::Desktop { desktop, order: DesktopRequest::Start }).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Connects to the desktop's VNC server. Starts the desktop if it is not running.
    ///
    /// # Errors
    /// The desktop could not be started, or the link is broken.
    pub async fn open_vnc(&self, desktop: DesktopSpec) -> Result<impl ByteStream + use<>, ProtocolError> {
        let mut stream =
            self.open_request(&Request::Desktop { desktop, order: DesktopRequest::OpenVnc }).await?;
        match check_refused(stream.receive_message::<Reply>().await?)? {
            Reply::Done => Ok(stream.into_raw()),
            other => Err(unexpected(&other)),
        }
    }

    /// Performs an action on the desktop. With a key, the guest performs it only once. Returns the reply and the
    /// bytes of the image that it announces, if any.
    ///
    /// # Errors
    /// The action failed ([`ProtocolError::Gui`]), or the link is broken.
    pub async fn act_on_desktop(
        &self,
        desktop: DesktopSpec,
        key: Option<CallKey>,
        action: GuiAction,
    ) -> Result<(GuiReply, Bytes), ProtocolError> {
        let order = DesktopRequest::Act { key, action };
        let mut stream = self.open_request(&Request::Desktop { desktop, order }).await?;
        match check_refused(stream.receive_message::<Reply>().await?)? {
            Reply::Gui(GuiResult::Error(error)) => Err(error.into()),
            Reply::Gui(GuiResult::Ok(reply)) => {
                let image = match &reply.image {
                    Some(image) => receive_image(&mut stream, image.bytes).await?,
                    None => Bytes::new(),
                };
                Ok((reply, image))
            }
            other => Err(unexpected(&other)),
        }
    }
}

async fn receive_image(stream: &mut MessageStream, announced: u64) -> Result<Bytes, ProtocolError> {
    let size = usize::try_from(announced).unwrap_or(usize::MAX);
    if size > MAX_IMAGE_BYTES {
        return Err(ProtocolError::TooLarge { what: "image", size, limit: MAX_IMAGE_BYTES });
    }
    let mut image = BytesMut::new();
    loop {
        match stream.receive().await? {
            Incoming::Data(bytes) if image.len() + bytes.len() <= size => image.extend_from_slice(&bytes),
            Incoming::DataEnd if image.len() == size => return Ok(image.freeze()),
            _ => return Err(ProtocolError::Unexpected("an image of another size than announced".into())),
        }
    }
}
