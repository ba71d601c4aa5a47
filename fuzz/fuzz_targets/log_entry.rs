//! The decoder of the log and the context engine behind it: any bytes decode to an entry or an error, and a view of
//! the log stays within its budget.
#![cfg_attr(fuzzing, no_main)]

use context::{Engine, Entry, Factor, Fixed, Settings};
use libfuzzer_sys::fuzz_target;

/// Longer logs find nothing new.
const MOST_LINES: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let fixed = Fixed { system_tokens: 100, tools_tokens: 200 };
    let settings = Settings { budget_tokens: 4_096, factor: Factor::ONE, fixed };
    let Ok(mut engine) = Engine::new(settings) else { return };
    for line in text.lines().take(MOST_LINES) {
        let Ok(entry) = Entry::decode(line) else { continue };
        // Encoding a decoded entry and decoding it again gives the same entry.
        let stored = entry.encode().expect("an entry that was decoded has a stored form");
        assert_eq!(Entry::decode(&stored).expect("a stored form is read"), entry);
        if engine.append(entry).is_ok() {
            let view = engine.view();
            assert!(view.tokens <= engine.policy().high, "{} of {}", view.tokens, engine.policy().high);
            assert_eq!(view.tokens, engine.tokens());
        }
    }
    let _ = engine.due_summaries();
});
