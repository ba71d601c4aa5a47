//! Whether the window manager is ready for input.
//!
//! A window manager announces itself before it handles events: a click that comes in between is lost. So it must first
//! answer a request.

use protocol::GuiError;
use x11rb::connection::Connection;
use x11rb::protocol::xproto::{
    ClientMessageEvent, ConnectionExt, CreateWindowAux, EventMask, Window, WindowClass,
};

use super::display::{Display, answered, lost, sent};

/// The most entries of the list of what a window manager supports.
const MAX_SUPPORTED: u32 = 1024;

/// What is known of the window manager.
#[derive(Default)]
pub(super) struct ManagerProbe {
    /// The window with which the one that has answered announced itself.
    answered: Option<Window>,
    /// A window of ours, never shown, about which it is asked.
    asked_about: Option<Window>,
}

impl Display {
    /// Whether a window manager is running and handles events. Asks it if that is not known yet; the answer shows in a
    /// later call.
    pub(super) fn has_manager(&mut self) -> Result<bool, GuiError> {
        let Some(manager) = self.announced_manager()? else {
            self.manager.answered = None;
            return Ok(false);
        };
        if self.manager.answered == Some(manager) {
            return Ok(true);
        }
        let supported = self.numbers(self.root, self.names._NET_SUPPORTED, MAX_SUPPORTED)?;
        if supported.contains(&self.names._NET_REQUEST_FRAME_EXTENTS) && !self.has_answered()? {
            return Ok(false);
        }
        self.manager.answered = Some(manager);
        Ok(true)
    }

    /// The window with which a running window manager has announced itself. One that was killed leaves its announcement
    /// behind, but not the window.
    fn announced_manager(&self) -> Result<Option<Window>, GuiError> {
        let check = self.names._NET_SUPPORTING_WM_CHECK;
        let announced = self.numbers(self.root, check, 1)?.first().copied().filter(|window| *window != 0);
        let Some(window) = announced else { return Ok(None) };
        Ok((self.numbers(window, check, 1)?.first() == Some(&window)).then_some(window))
    }

    /// Asks how wide the frame of a window would be, and whether an earlier question was answered.
    fn has_answered(&mut self) -> Result<bool, GuiError> {
        let window = match self.manager.asked_about {
            Some(window) => window,
            None => self.create_hidden_window()?,
        };
        self.manager.asked_about = Some(window);
        if !self.numbers(window, self.names._NET_FRAME_EXTENTS, 4)?.is_empty() {
            sent(self.connection.destroy_window(window))?;
            self.manager.asked_about = None;
            return Ok(true);
        }
        let question = ClientMessageEvent::new(32, window, self.names._NET_REQUEST_FRAME_EXTENTS, [0u32; 5]);
        let listeners = EventMask::SUBSTRUCTURE_REDIRECT | EventMask::SUBSTRUCTURE_NOTIFY;
        sent(self.connection.send_event(false, self.root, listeners, question))?;
        self.connection.flush().map_err(|error| lost(&error))?;
        Ok(false)
    }

    fn create_hidden_window(&self) -> Result<Window, GuiError> {
        let window = self.connection.generate_id().map_err(|error| lost(&error))?;
        let created = self.connection.create_window(
            x11rb::COPY_DEPTH_FROM_PARENT,
            window,
            self.root,
            0,
            0,
            1,
            1,
            0,
            WindowClass::INPUT_OUTPUT,
            x11rb::COPY_FROM_PARENT,
            &CreateWindowAux::new(),
        );
        answered(created.map_err(|error| lost(&error))?.check())?;
        Ok(window)
    }
}
