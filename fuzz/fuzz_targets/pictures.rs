//! Images produced by sandboxed programs: the reported format and size match the header, and have bounds.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;
use model::Image;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/agent/src/stored_image/mod.rs"]
mod picture;

fuzz_target!(|bytes: &[u8]| {
    let image = Image { media_type: "image/png".into(), bytes: bytes.to_vec() };
    let picture = picture::Picture::of(&image, "digest".into());
    assert_eq!(picture.bytes, bytes.len() as u64);
    assert!((1..=1_600).contains(&picture.tokens()));
    assert!(!picture.text().is_empty());
    if picture.width > 7_900 || picture.height > 7_900 {
        assert!(!picture.can_be_sent());
    }
});
