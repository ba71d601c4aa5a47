//! Workspace files with any content, as parsed for the repository map and for the outline of a huge file.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let names = ["a.rs", "a.py", "a.ts", "a.go", "a.java", "a.c", "a.md", "a.json", "a.rb", "a.log", "a"];
    let path = names[usize::from(*kind) % names.len()];
    let lines = text.lines().count();
    for definition in context::map::definitions(path, text) {
        assert!(definition.line >= 1 && definition.line <= lines, "{definition:?}");
    }
    let outline = context::outline::Outline::of(path, text);
    let _ = outline.render(200);
});
