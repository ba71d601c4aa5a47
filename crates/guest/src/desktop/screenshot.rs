//! Screenshots as PNG.
//!
//! The X server writes the pixels into a shared memory file. The guest reads it with file reads rather than through a
//! mapping, so that a server that truncates it causes an error instead of SIGBUS. The memory is reused for the next
//! screenshot.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use protocol::GuiError;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use x11rb::connection::Connection;
use x11rb::protocol::shm::ConnectionExt as _;
use x11rb::protocol::xproto::{ConnectionExt as _, ImageFormat};
use x11rb::utils::RawFdContainer;

use super::display::{Display, answered, lost, new_id};
use super::png_encoder::{PIXEL_BYTES, PngEncoder, begin_file, put_chunk};
use super::pointer;
use super::record::Frame;

const ALL_PLANES: u32 = u32::MAX;
/// Bytes read at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// An image file.
pub(crate) struct PngImage {
    /// In pixels.
    pub(crate) width: u32,
    /// In pixels.
    pub(crate) height: u32,
    /// The content of the PNG file.
    pub(crate) png: Vec<u8>,
}

/// Memory into which the X server writes pixels.
pub(super) struct SharedPixels {
    memory: File,
    segment: u32,
}

impl Display {
    /// Takes a screenshot of the whole screen.
    pub(super) fn screenshot(&mut self) -> Result<PngImage, GuiError> {
        let (width, height) = (u32::from(self.width), u32::from(self.height));
        let row_bytes = self.row_bytes();
        let mut png_encoder = PngEncoder::new().map_err(|error| lost(&error))?;
        self.pixels(|rows| rows.chunks_exact(row_bytes).try_for_each(|row| png_encoder.add(row)))?;
        let mut png = begin_file(width, height);
        put_chunk(&mut png, b"IDAT", &png_encoder.finish().map_err(|error| lost(&error))?);
        put_chunk(&mut png, b"IEND", &[]);
        Ok(PngImage { width, height, png })
    }

    /// Returns the raw pixels of the whole screen with the pointer drawn on them. The server does not include the
    /// pointer.
    pub(super) fn frame(&mut self) -> Result<Frame, GuiError> {
        let size = usize::from(self.width) * usize::from(self.height) * PIXEL_BYTES;
        let mut pixels = Vec::with_capacity(size);
        self.pixels(|rows| {
            pixels.extend_from_slice(rows);
            Ok(())
        })?;
        let asked = self.connection.query_pointer(self.root).map_err(|error| lost(&error))?;
        let place = answered(asked.reply())?;
        let mut frame = Frame { width: self.width.into(), height: self.height.into(), pixels };
        pointer::draw(&mut frame, place.root_x, place.root_y);
        Ok(frame)
    }

    fn row_bytes(&self) -> usize {
        usize::from(self.width.max(1)) * PIXEL_BYTES
    }

    /// Passes the pixels of the whole screen to `take`, several rows at a time.
    fn pixels(&mut self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> Result<(), GuiError> {
        self.check_format()?;
        let row_bytes = self.row_bytes();
        let size = usize::from(self.width) * usize::from(self.height) * PIXEL_BYTES;
        match self.shared_pixels(size) {
            Some(shared) => read_rows(&shared?.memory, row_bytes, size, take).map_err(|error| lost(&error)),
            None => take(&self.copied_pixels(size)?).map_err(|error| lost(&error)),
        }
    }

    /// Checks for the only supported pixel format.
    fn check_format(&self) -> Result<(), GuiError> {
        let setup = self.connection.setup();
        let depth = setup.roots.first().map_or(0, |screen| screen.root_depth);
        let format = setup.pixmap_formats.iter().find(|format| format.depth == depth);
        if format.is_some_and(|format| format.bits_per_pixel == 32) && depth == 24 {
            Ok(())
        } else {
            Err(lost("its screen has another depth than 24 bits"))
        }
    }

    /// Writes the pixels to shared memory. `None` if the server does not support shared memory.
    fn shared_pixels(&mut self, size: usize) -> Option<Result<&SharedPixels, GuiError>> {
        let shared = match self.shared.take() {
            Some(shared) => shared,
            None => self.share(size)?,
        };
        let (width, height, segment) = (self.width, self.height, shared.segment);
        let format = u8::from(ImageFormat::Z_PIXMAP);
        let asked =
            self.connection.shm_get_image(self.root, 0, 0, width, height, ALL_PLANES, format, segment, 0);
        let written = asked.map_err(|error| lost(&error)).and_then(|asked| answered(asked.reply()));
        Some(written.map(|_| &*self.shared.insert(shared)))
    }

    /// Allocates memory of this size and shares it with the server.
    fn share(&self, size: usize) -> Option<SharedPixels> {
        let memory = memfd_create("picture", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&memory, size as u64).ok()?;
        let theirs = RawFdContainer::from(memory.try_clone().ok()?);
        let segment = new_id(self).ok()?;
        self.connection.shm_attach_fd(segment, theirs, false).ok()?.check().ok()?;
        Some(SharedPixels { memory: File::from(memory), segment })
    }

    /// Receives the pixels through the socket.
    fn copied_pixels(&self, size: usize) -> Result<Vec<u8>, GuiError> {
        let asked = self.connection.get_image(
            ImageFormat::Z_PIXMAP,
            self.root,
            0,
            0,
            self.width,
            self.height,
            ALL_PLANES,
        );
        let image = answered(asked.map_err(|error| lost(&error))?.reply())?;
        if image.data.len() != size {
            return Err(lost("it sent an image of another size"));
        }
        Ok(image.data)
    }
}

fn read_rows(
    file: &File,
    row_bytes: usize,
    size: usize,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let rows = (PIECE_BYTES / row_bytes).max(1);
    let mut piece = vec![0u8; (rows * row_bytes).min(size)];
    let mut from = 0usize;
    while from < size {
        let count = piece.len().min(size - from);
        let Some(piece) = piece.get_mut(..count) else { break };
        file.read_exact_at(piece, from as u64)?;
        take(piece)?;
        from += count;
    }
    Ok(())
}
