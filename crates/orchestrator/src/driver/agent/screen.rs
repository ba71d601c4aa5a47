//! Desktop, browser and images for the agent of a job.

use std::sync::atomic::Ordering;
use std::time::Duration;

use agent::{BrowserReport, DesktopReport, Picture};
use job::BrowserInput;
use protocol::{CallKey, GuiAction, ProtocolError};
use serde_json::Value;

use super::super::DriverExit;
use super::super::stop::wait_for_cancel;
use super::host::AgentHost;
use crate::driver::browser;
use crate::driver::desktop::desktop_spec;

/// Longer than the longest wait of any action.
const TIMEOUT: Duration = Duration::from_secs(660);
/// How long the guest may take to store a file.
const FILE_TIMEOUT: Duration = Duration::from_secs(60);

impl AgentHost<'_> {
    /// Performs an action on the desktop. For a key that the guest knows, it returns the earlier result: no action is
    /// performed twice.
    pub(super) async fn act(
        &self,
        key: Option<CallKey>,
        action: GuiAction,
    ) -> Result<Result<DesktopReport, String>, DriverExit> {
        let desktop = desktop_spec(&self.driver.spec);
        let expiry = self.driver.core.host_disk.sleep_unfrozen(TIMEOUT);
        tokio::pin!(expiry);
        let mut control_request = self.driver.control_request.clone();
        loop {
            let client = self.driver.guest().await?;
            let asking = client.act_on_desktop(desktop.clone(), key.clone(), action.clone());
            let asked = tokio::select! {
                asked = asking => asked,
                () = wait_for_cancel(&mut control_request) => return Err(DriverExit::Cancelled),
                () = self.driver.time_over() => return Err(DriverExit::Deadline),
                () = &mut expiry => return Ok(Err("it did not end in time".into())),
            };
            match asked {
                Ok((reply, png)) => {
                    self.has_desktop.store(true, Ordering::Relaxed);
                    if let Some(key) = key {
                        let client = client.clone();
                        tokio::spawn(async move {
                            let _ = client.forget(key).await;
                        });
                    }
                    let image = reply.image.is_some().then(|| png_image(png.to_vec()));
                    return Ok(Ok(DesktopReport { reply, image }));
                }
                Err(ProtocolError::Gui(error)) => return Ok(Err(error.message)),
                Err(error @ (ProtocolError::Io(_) | ProtocolError::Closed)) => {
                    self.driver.after_break(error).await?;
                }
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
    }

    pub(super) async fn browse_page(
        &self,
        action: Value,
    ) -> Result<Result<BrowserReport, String>, DriverExit> {
        let input: BrowserInput = match serde_json::from_value(action) {
            Ok(input) => input,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if let Err(error) = input.check() {
            return Ok(Err(error.to_string()));
        }
        let client = self.driver.guest().await?;
        let expiry = self.driver.core.host_disk.sleep_unfrozen(TIMEOUT);
        tokio::pin!(expiry);
        let mut control_request = self.driver.control_request.clone();
        let done = tokio::select! {
            done = browser::perform(&client, &self.driver.spec, &input) => done,
            () = wait_for_cancel(&mut control_request) => return Err(DriverExit::Cancelled),
            () = self.driver.time_over() => return Err(DriverExit::Deadline),
            () = &mut expiry => return Ok(Err("it did not end in time".into())),
        };
        self.has_desktop.store(true, Ordering::Relaxed);
        Ok(match done {
            Ok(shown) => Ok(BrowserReport {
                facts: shown.facts,
                image: shown.picture.map(|png| png_image(png.to_vec())),
            }),
            Err(error) => Err(error.explain()),
        })
    }

    /// Stores an image as a blob.
    pub(super) async fn keep_image(&self, image: model::Image) -> Result<Picture, DriverExit> {
        let digest = self.driver.recorder.put_blob(image.bytes.clone()).await?;
        Ok(Picture::of(&image, digest))
    }

    /// Writes a binary file to the workspace.
    pub(super) async fn put_file(&self, path: &str, bytes: &[u8]) -> Result<Result<(), String>, DriverExit> {
        loop {
            let client = self.driver.guest().await?;
            let writing = async {
                let mut upload = client.upload(path.to_owned(), None).await?;
                for piece in bytes.chunks(64 * 1024) {
                    upload.write(piece).await?;
                }
                upload.finish().await
            };
            match self.driver.core.host_disk.within(FILE_TIMEOUT, writing).await {
                Some(Ok(_)) => return Ok(Ok(())),
                Some(Err(error @ (ProtocolError::Io(_) | ProtocolError::Closed))) => {
                    self.driver.after_break(error).await?;
                }
                Some(Err(ProtocolError::File(error))) => return Ok(Err(error.message)),
                Some(Err(error)) => return Ok(Err(error.to_string())),
                None => return Ok(Err("it did not end in time".into())),
            }
        }
    }
}

fn png_image(bytes: Vec<u8>) -> model::Image {
    model::Image { media_type: "image/png".into(), bytes }
}
