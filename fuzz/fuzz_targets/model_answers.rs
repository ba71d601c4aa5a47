//! What a model's server streams, in each of the four dialects, cut anywhere; and tool calls written as text.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((kind, rest)) = bytes.split_first() {
        model::fuzzing::read_answer(*kind, rest);
    }
});
