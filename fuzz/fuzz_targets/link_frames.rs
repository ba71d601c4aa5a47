//! The content of one stream of the link: frames, output, records of display data. Whatever the guest sends, each
//! item is read completely or rejected, within its limits, and encodes to the bytes it was read from.
#![cfg_attr(fuzzing, no_main)]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use protocol::frame::{Frame, FrameKind, MAX_PAYLOAD_BYTES, decode_output, encode_output};
use protocol::{DisplayReader, plain_text};

fuzz_target!(|bytes: &[u8]| {
    let mut input = BytesMut::from(bytes);
    let mut shown = DisplayReader::default();
    while let Ok(Some(frame)) = Frame::decode(&mut input) {
        assert!(frame.payload.len() <= MAX_PAYLOAD_BYTES);
        let mut again = BytesMut::new();
        Frame::encode(frame.kind, &frame.payload, &mut again);
        assert_eq!(Frame::decode(&mut again).expect("an own frame").expect("a whole frame"), frame);
        if frame.kind != FrameKind::Output {
            continue;
        }
        let Ok(chunk) = decode_output(frame.payload.clone()) else { continue };
        let mut again = BytesMut::new();
        encode_output(&chunk, &mut again);
        assert_eq!(
            Frame::decode(&mut again).expect("an own frame").expect("a whole frame").payload,
            frame.payload
        );
        for display in shown.take(&chunk.bytes) {
            let record = display.encode().expect("what was read is not longer than a record may be");
            assert_eq!(DisplayReader::default().take(&record), [display]);
        }
    }
    for display in DisplayReader::default().take(bytes) {
        drop(display.encode());
    }
    assert!(!plain_text(&String::from_utf8_lossy(bytes)).contains('\x1b'));
});
