//! Pixels of the screen, compressed for PNG. Rows go straight into the compressor: a screenshot has about a million
//! pixels, and copying them first would cost time and memory.

use std::io;

/// Bytes per pixel from the server: blue, green, red, padding.
pub(super) const PIXEL_BYTES: usize = 4;
const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// PNG's filter type `Sub`: each pixel is stored as the difference from its left neighbor. Screens have little
/// variation along a row.
const FILTER_SUB: u8 = 1;
/// Buffer size for the compressor.
const PIECE_BYTES: usize = 64 * 1024;
/// The highest bit of each byte.
const HIGH: u32 = 0x8080_8080;
const RGB_MASK: u32 = 0x00ff_ffff;

/// Rows compressed into PNG image data.
pub(super) struct PngEncoder {
    compressor: fdeflate::Compressor<Vec<u8>>,
    lines: Vec<u8>,
}

impl PngEncoder {
    pub(super) fn new() -> io::Result<Self> {
        let compressor = fdeflate::Compressor::new(Vec::with_capacity(PIECE_BYTES))?;
        Ok(Self { compressor, lines: Vec::with_capacity(PIECE_BYTES) })
    }

    /// Adds a row in the server's pixel format.
    pub(super) fn add(&mut self, row: &[u8]) -> io::Result<()> {
        let from = self.lines.len();
        self.lines.resize(from + 1 + row.len() / PIXEL_BYTES * 3, FILTER_SUB);
        sub_filter(row, self.lines.get_mut(from + 1..).unwrap_or_default());
        if self.lines.len() >= PIECE_BYTES / 2 {
            self.compressor.write_data(&self.lines)?;
            self.lines.clear();
        }
        Ok(())
    }

    /// Returns the compressed rows.
    pub(super) fn finish(mut self) -> io::Result<Vec<u8>> {
        self.compressor.write_data(&self.lines)?;
        self.compressor.finish()
    }
}

/// The signature and header of a PNG file with these dimensions.
pub(super) fn begin_file(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    // RGB with 8 bits per channel, without interlacing.
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend_from_slice(&[8, 2, 0, 0, 0]);
    put_chunk(&mut bytes, b"IHDR", &header);
    bytes
}

/// Appends a PNG chunk.
pub(super) fn put_chunk(bytes: &mut Vec<u8>, name: &[u8; 4], content: &[u8]) {
    bytes.extend_from_slice(&u32::try_from(content.len()).unwrap_or(u32::MAX).to_be_bytes());
    let from = bytes.len();
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(content);
    let checksum = crc32fast::hash(bytes.get(from..).unwrap_or_default());
    bytes.extend_from_slice(&checksum.to_be_bytes());
}

/// The difference of each pixel's red, green and blue from those of the previous pixel. Processes four pixels (three
/// 32-bit words of output) at a time.
fn sub_filter(row: &[u8], line: &mut [u8]) {
    let (fours, rest) = row.as_chunks::<16>();
    let (threes, _) = line.as_chunks_mut::<12>();
    let mut before = 0;
    for (four, three) in fours.iter().zip(threes.iter_mut()) {
        let pixel = |at: usize| rgb(four[at], four[at + 1], four[at + 2]);
        let [a, b, c, d] = [0, 4, 8, 12].map(pixel);
        let [e, f, g, h] = [without(a, before), without(b, a), without(c, b), without(d, c)];
        before = d;
        three[..4].copy_from_slice(&(e | f << 24).to_le_bytes());
        three[4..8].copy_from_slice(&(f >> 8 | g << 16).to_le_bytes());
        three[8..].copy_from_slice(&(g >> 16 | h << 8).to_le_bytes());
    }
    // The remaining pixels of a row whose width is not a multiple of four.
    let ends = line.get_mut(fours.len() * 12..).unwrap_or_default();
    for (pixel, end) in rest.chunks_exact(PIXEL_BYTES).zip(ends.chunks_exact_mut(3)) {
        let pixel = rgb(pixel[0], pixel[1], pixel[2]);
        end.copy_from_slice(&without(pixel, before).to_le_bytes()[..3]);
        before = pixel;
    }
}

fn rgb(blue: u8, green: u8, red: u8) -> u32 {
    u32::from_le_bytes([red, green, blue, 0])
}

/// Subtracts each byte of `before` from that of `rgb`, without borrowing across bytes.
fn without(rgb: u32, before: u32) -> u32 {
    (((rgb | HIGH) - (before & !HIGH)) ^ ((rgb ^ !before) & HIGH)) & RGB_MASK
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn encoded_png_matches_the_screen_pixels(
            width in 1usize..40, height in 1usize..5, seed in prop::collection::vec(any::<u8>(), 4 * 40 * 5)
        ) {
            let pixels = &seed[..width * height * PIXEL_BYTES];
            let mut png_encoder = PngEncoder::new().unwrap();
            for row in pixels.chunks_exact(width * PIXEL_BYTES) {
                png_encoder.add(row).unwrap();
            }
            let mut file = begin_file(width as u32, height as u32);
            put_chunk(&mut file, b"IDAT", &png_encoder.finish().unwrap());
            put_chunk(&mut file, b"IEND", &[]);
            let mut reader = png::Decoder::new(io::Cursor::new(file)).read_info().unwrap();
            let mut seen = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut seen).unwrap();
            let wanted: Vec<u8> =
                pixels.chunks_exact(4).flat_map(|pixel| [pixel[2], pixel[1], pixel[0]]).collect();
            prop_assert_eq!(seen, wanted);
        }
    }
}
