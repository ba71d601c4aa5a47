//! Reads format and size of an image from its first bytes.

/// An image format that providers accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Png,
    Jpeg,
    Gif,
    Webp,
}

impl Format {
    /// The format of a file with these first bytes; `None` if it is no image.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            Some(Self::Png)
        } else if bytes.starts_with(b"\xff\xd8\xff") {
            Some(Self::Jpeg)
        } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
            Some(Self::Gif)
        } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Some(Self::Webp)
        } else {
            None
        }
    }

    /// The name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::Gif => "GIF",
            Self::Webp => "WebP",
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }
}

/// Width and height in pixels; `None` if the bytes are not an image that can be read.
pub(super) fn size(bytes: &[u8]) -> Option<(u32, u32)> {
    match Format::of(bytes)? {
        Format::Png => Some((big_endian(bytes, 16, 4)?, big_endian(bytes, 20, 4)?)),
        Format::Jpeg => size_of_jpeg(bytes),
        Format::Gif => Some((little_endian(bytes, 6, 2)?, little_endian(bytes, 8, 2)?)),
        Format::Webp => size_of_webp(bytes),
    }
}

/// Looks for the frame header, which follows segments of any length.
fn size_of_jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        if *bytes.get(at)? != 0xff {
            return None;
        }
        match *bytes.get(at + 1)? {
            // Padding, and markers without a length.
            0xff => at += 1,
            0x01 | 0xd0..=0xd8 => at += 2,
            // Tables that share the range of frame headers.
            0xc4 | 0xc8 | 0xcc => at = after_segment(bytes, at)?,
            0xc0..=0xcf => return Some((big_endian(bytes, at + 7, 2)?, big_endian(bytes, at + 5, 2)?)),
            _ => at = after_segment(bytes, at)?,
        }
    }
}

fn after_segment(bytes: &[u8], at: usize) -> Option<usize> {
    let length = usize::try_from(big_endian(bytes, at + 2, 2)?).ok()?;
    (length >= 2).then_some(at + 2 + length)
}

fn size_of_webp(bytes: &[u8]) -> Option<(u32, u32)> {
    const FOURTEEN_BITS: u32 = 0x3fff;
    match bytes.get(12..16)? {
        b"VP8 " => {
            let side = |at| Some(little_endian(bytes, at, 2)? & FOURTEEN_BITS);
            Some((side(26)?, side(28)?))
        }
        b"VP8L" => {
            let both = little_endian(bytes, 21, 4)?;
            Some(((both & FOURTEEN_BITS) + 1, ((both >> 14) & FOURTEEN_BITS) + 1))
        }
        b"VP8X" => Some((little_endian(bytes, 24, 3)? + 1, little_endian(bytes, 27, 3)? + 1)),
        _ => None,
    }
}

fn big_endian(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    Some(bytes.get(at..at + length)?.iter().fold(0, |number, byte| (number << 8) | u32::from(*byte)))
}

fn little_endian(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    Some(bytes.get(at..at + length)?.iter().rev().fold(0, |number, byte| (number << 8) | u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A WebP file whose first chunk has this name and content.
    fn webp(chunk: &[u8; 4], content: &[u8]) -> Vec<u8> {
        [b"RIFF\0\0\0\0WEBP".as_slice(), chunk.as_slice(), [0; 4].as_slice(), content].concat()
    }

    #[test]
    fn format_and_size_are_read_from_the_header() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x05\0\0\0\x03\x20".to_vec();
        let jpeg = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xc2\x00\x0b\x08\x03\x20\x05\x00\x01".to_vec();
        let gif = b"GIF89a\x00\x05\x20\x03".to_vec();
        let lossy = webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a\x00\x45\x20\x03");
        let lossless = webp(b"VP8L", b"\x2f\xff\xc4\xc7\x00");
        let extended = webp(b"VP8X", b"\0\0\0\0\xff\x04\x00\x1f\x03\x00");
        for (bytes, format) in [
            (png, Format::Png),
            (jpeg, Format::Jpeg),
            (gif, Format::Gif),
            (lossy, Format::Webp),
            (lossless, Format::Webp),
            (extended, Format::Webp),
        ] {
            assert_eq!((Format::of(&bytes), size(&bytes)), (Some(format), Some((1280, 800))), "{bytes:?}");
        }
        assert_eq!((Format::of(b"text"), size(b"\xff\xd8\xffno frame")), (None, None));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(kind in 0..4usize, bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let begin: [&[u8]; 4] = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"RIFF\0\0\0\0WEBPVP8L"];
            let _ = size(&[begin[kind], bytes.as_slice()].concat());
        }
    }
}
