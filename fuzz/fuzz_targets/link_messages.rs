//! Messages of a guest: the first byte selects the expected type. What parses must survive encoding and parsing
//! again.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;
use protocol::{CallStatus, ExecEvent, FileReply, GuestRequest, Reply, WatchChange, Welcome};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn read<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<T>(bytes) {
        let text = serde_json::to_vec(&message).expect("what was read can be written");
        let again: T = serde_json::from_slice(&text).expect("what was written can be read");
        assert_eq!(serde_json::to_vec(&again).expect("twice"), text);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 7 {
        0 => read::<Reply>(rest),
        1 => read::<GuestRequest>(rest),
        2 => read::<ExecEvent>(rest),
        3 => read::<Welcome>(rest),
        4 => read::<CallStatus>(rest),
        5 => read::<FileReply>(rest),
        _ => read::<WatchChange>(rest),
    }
});
