//! Images from tools. The host stores their contents; events and results refer to them by digest. A log with a
//! hundred screenshots therefore stays small, and only the images in the current prompt are in memory.

mod header;

use model::Image;
use serde::{Deserialize, Serialize};

pub(crate) use self::header::Format;

/// The token estimate for an image of unknown size, and the most tokens that providers charge: they scale larger
/// images down.
const MAX_TOKENS: u32 = 1_600;
const PIXELS_PER_TOKEN: u64 = 750;
/// Providers reject a request that contains an image with more pixels per side or more bytes.
const MAX_PIXELS: u32 = 7_900;
const MAX_BYTES: u64 = 3_500_000;

/// An image in the host's store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// Content digest; the key in the store.
    pub digest: String,
    /// Such as `image/png`.
    pub media_type: String,
    pub bytes: u64,
    /// Pixels; 0 if unknown.
    #[serde(default)]
    pub width: u32,
    /// Pixels; 0 if unknown.
    #[serde(default)]
    pub height: u32,
}

impl Picture {
    /// The metadata of an image that is stored under this digest.
    #[must_use]
    pub fn of(image: &Image, digest: String) -> Self {
        let (width, height) = header::size(&image.bytes).unwrap_or_default();
        Self { digest, media_type: image.media_type.clone(), bytes: image.bytes.len() as u64, width, height }
    }

    /// Whether providers accept the image. An image that they reject would end the conversation.
    #[must_use]
    pub fn can_be_sent(&self) -> bool {
        self.bytes <= MAX_BYTES && self.width <= MAX_PIXELS && self.height <= MAX_PIXELS
    }

    /// Estimated token cost.
    pub(crate) fn tokens(&self) -> u32 {
        let pixels = u64::from(self.width) * u64::from(self.height);
        match u32::try_from(pixels / PIXELS_PER_TOKEN) {
            Ok(tokens) if pixels > 0 => tokens.clamp(1, MAX_TOKENS),
            _ => MAX_TOKENS,
        }
    }

    /// The placeholder text for the image in a result.
    pub(crate) fn text(&self) -> String {
        match (self.width, self.height) {
            (0, _) | (_, 0) => format!("[picture, {} bytes]", self.bytes),
            (width, height) => format!("[picture, {width}x{height} pixels]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32) -> Picture {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        Picture::of(&Image { media_type: "image/png".into(), bytes }, "d".into())
    }

    #[test]
    fn image_size_determines_tokens_and_acceptance() {
        let screen = png(1280, 800);
        assert_eq!((screen.width, screen.height, screen.tokens()), (1280, 800, 1365));
        assert!(screen.can_be_sent());
        assert_eq!(screen.text(), "[picture, 1280x800 pixels]");
        assert!(!png(1280, 20_000).can_be_sent(), "a whole page that is very long");
        assert_eq!(png(3840, 2160).tokens(), MAX_TOKENS);
        let unknown = Image { media_type: "image/jpeg".into(), bytes: vec![1, 2, 3] };
        let unknown = Picture::of(&unknown, "d".into());
        assert_eq!((unknown.tokens(), unknown.text().as_str()), (MAX_TOKENS, "[picture, 3 bytes]"));
    }
}
