//! An animated PNG on disk. The file is complete after every frame: a frame holds only the part of the screen that
//! changed, overwrites the end marker, and appends a new one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::png_encoder::{PngEncoder, begin_file, put_chunk};

/// Offset of the frame count, right after the signature and the header.
const COUNT_AT: u64 = 33;
/// Delays are in milliseconds.
const PER_SECOND: u16 = 1000;
/// The delay of the newest frame, until another frame follows.
const LAST_MILLISECONDS: u16 = 1000;

/// A rectangle on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) width: u32,
    pub(super) height: u32,
}

/// An animation file that grows frame by frame.
pub(super) struct AnimatedPng {
    file: File,
    frames: u32,
    /// The next sequence number for chunks that have one.
    sequence: u32,
    /// Offset of the end marker.
    end: u64,
    last: Option<FrameControl>,
}

/// The metadata that precedes the pixels of a frame (`fcTL`).
#[derive(Debug, Clone, Copy)]
struct FrameControl {
    at: u64,
    sequence: u32,
    area: Area,
}

impl AnimatedPng {
    /// Begins a file without frames for screens of this size.
    pub(super) fn begin(file: File, width: u32, height: u32) -> io::Result<Self> {
        let mut bytes = begin_file(width, height);
        put_chunk(&mut bytes, b"acTL", &count(0));
        file.write_all_at(&bytes, 0)?;
        Ok(Self { file, frames: 0, sequence: 0, end: bytes.len() as u64, last: None })
    }

    /// Size of the file so far, without the end marker.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// Adds a frame with the rows of `area`; the first frame must cover the whole screen. `before_ms` is how long the
    /// previous frame was visible.
    pub(super) fn add<'a>(
        &mut self,
        area: Area,
        mut rows: impl Iterator<Item = &'a [u8]>,
        before_ms: u16,
    ) -> io::Result<()> {
        let mut png_encoder = PngEncoder::new()?;
        rows.try_for_each(|row| png_encoder.add(row))?;
        let pixels = png_encoder.finish()?;
        let control = FrameControl { at: self.end, sequence: self.sequence, area };
        let mut bytes = Vec::with_capacity(pixels.len() + 100);
        put_chunk(&mut bytes, b"fcTL", &control.content(LAST_MILLISECONDS));
        self.sequence += 1;
        if self.last.is_none() {
            put_chunk(&mut bytes, b"IDAT", &pixels);
        } else {
            put_chunk(&mut bytes, b"fdAT", &[&self.sequence.to_be_bytes(), pixels.as_slice()].concat());
            self.sequence += 1;
        }
        let end = self.end + bytes.len() as u64;
        put_chunk(&mut bytes, b"IEND", &[]);
        self.file.write_all_at(&bytes, self.end)?;
        if let Some(last) = self.last {
            self.rewrite(last.at, b"fcTL", &last.content(before_ms))?;
        }
        self.rewrite(COUNT_AT, b"acTL", &count(self.frames + 1))?;
        (self.frames, self.end, self.last) = (self.frames + 1, end, Some(control));
        Ok(())
    }

    fn rewrite(&self, at: u64, name: &[u8; 4], content: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        put_chunk(&mut bytes, name, content);
        self.file.write_all_at(&bytes, at)
    }
}

impl FrameControl {
    fn content(&self, milliseconds: u16) -> Vec<u8> {
        let Area { x, y, width, height } = self.area;
        let mut content = [self.sequence, width, height, x, y].map(u32::to_be_bytes).concat();
        content.extend_from_slice(&milliseconds.to_be_bytes());
        content.extend_from_slice(&PER_SECOND.to_be_bytes());
        // Leave the frame in place for the next one; copy its pixels without blending.
        content.extend_from_slice(&[0, 0]);
        content
    }
}

/// The content of `acTL`: the number of frames, played once.
fn count(frames: u32) -> Vec<u8> {
    [frames, 1].map(u32::to_be_bytes).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_is_valid_after_every_frame() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.apng");
        let mut animation = AnimatedPng::begin(File::create(&path).unwrap(), 4, 2).unwrap();
        let whole = Area { x: 0, y: 0, width: 4, height: 2 };
        let corner = Area { x: 3, y: 1, width: 1, height: 1 };
        animation.add(whole, [[10; 16]; 2].iter().map(|row| &row[..]), 0).unwrap();
        for (number, before) in [(1u32, 40), (2, 70)] {
            animation.add(corner, [&[number as u8; 4][..]].into_iter(), before).unwrap();
            let file = std::fs::read(&path).unwrap();
            let mut reader = png::Decoder::new(io::Cursor::new(file)).read_info().unwrap();
            assert_eq!(reader.info().animation_control().unwrap().num_frames, number + 1);
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            let mut shown = Vec::new();
            for _ in 0..=number {
                reader.next_frame(&mut pixels).unwrap();
                shown.push(*reader.info().frame_control().unwrap());
            }
            assert_eq!(pixels[..3], [number as u8; 3]);
            let last = shown.last().unwrap();
            assert_eq!((last.x_offset, last.y_offset, last.width, last.height), (3, 1, 1, 1));
            let delays: Vec<u16> = shown.iter().map(|control| control.delay_num).collect();
            assert_eq!(delays[..], [40, if number == 1 { 1000 } else { 70 }, 1000][..=number as usize]);
        }
        let file = std::fs::read(&path).unwrap();
        assert_eq!(file.len() as u64, animation.bytes() + 12);
    }
}
