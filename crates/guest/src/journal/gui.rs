//! A journaled desktop action: performed once, with its result kept for repeated requests with the same key.

use std::cell::RefCell;
use std::path::PathBuf;

use protocol::{CallKey, GuiError, GuiErrorCode, GuiResult};
use tokio::sync::watch;

use super::write_file;

/// The file for the image of a result, in the folder of the call.
const IMAGE_FILE: &str = "image.png";

pub(crate) struct GuiCall {
    pub(crate) key: CallKey,
    folder: PathBuf,
    result: RefCell<Option<GuiResult>>,
    is_done: watch::Sender<bool>,
}

impl GuiCall {
    pub(crate) fn new(key: CallKey, folder: PathBuf) -> Self {
        Self { key, folder, result: RefCell::new(None), is_done: watch::Sender::new(false) }
    }

    pub(crate) fn is_done(&self) -> bool {
        *self.is_done.borrow()
    }

    /// Stores the result and wakes the waiters.
    pub(crate) fn finish(&self, mut result: GuiResult, image: &[u8]) {
        if !image.is_empty()
            && let Err(error) = write_file(&self.folder, IMAGE_FILE, image)
        {
            let message = format!("cannot store the screenshot: {error}");
            result = GuiResult::Error(GuiError { code: GuiErrorCode::NoDesktop, message });
        }
        *self.result.borrow_mut() = Some(result);
        self.is_done.send_replace(true);
    }

    /// Waits for the result and its image.
    pub(crate) async fn result(&self) -> (GuiResult, Vec<u8>) {
        let _ = self.is_done.subscribe().wait_for(|done| *done).await;
        let lost = || {
            let message = "the action was carried out, but its result could not be kept".to_owned();
            GuiResult::Error(GuiError { code: GuiErrorCode::NoDesktop, message })
        };
        let result = self.result.borrow().clone().unwrap_or_else(lost);
        match &result {
            GuiResult::Ok(reply) if reply.image.is_some() => {
                match std::fs::read(self.folder.join(IMAGE_FILE)) {
                    Ok(image) => (result, image),
                    Err(_) => (lost(), Vec::new()),
                }
            }
            _ => (result, Vec::new()),
        }
    }

    /// Drops the image because the host has the result.
    pub(crate) fn forget(&self) {
        let _ = std::fs::remove_file(self.folder.join(IMAGE_FILE));
    }
}
