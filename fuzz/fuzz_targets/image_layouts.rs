//! The JSON documents of a layered image: each is parsed or rejected, and refers to nothing outside its folder.
#![cfg_attr(fuzzing, no_main)]

use std::fs;

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/image/src/oci.rs"]
mod oci;
#[path = "parts/unpack_folder.rs"]
mod unpack_folder;
/// Replaces the image crate's own module.
mod recipe {
    pub(crate) fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let folder = unpack_folder::empty();
    if kind & 1 == 0 {
        fs::write(folder.join("manifest.json"), rest).expect("a file");
    } else {
        fs::write(folder.join("oci-layout"), "{}").expect("a file");
        fs::write(folder.join("index.json"), rest).expect("a file");
    }
    if let Ok(Some(layout)) = oci::Layout::find(&folder) {
        for layer in layout.layers() {
            if let Ok(file) = layout.open(layer) {
                let real = std::os::fd::AsRawFd::as_raw_fd(&file);
                let real = fs::read_link(format!("/proc/self/fd/{real}")).expect("a path");
                assert!(real.starts_with(&folder), "{}", real.display());
            }
        }
    }
    unpack_folder::assert_untouched(&[]);
});
