//! Streams of model servers in each of the four dialects, split anywhere; and tool calls written as text.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((kind, rest)) = bytes.split_first() {
        model::fuzzing::read_answer(*kind, rest);
    }
});
