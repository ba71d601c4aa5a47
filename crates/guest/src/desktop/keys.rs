//! Key names and the X keysyms of keys and characters.

/// Accepted key names, in lower case, with their keysyms.
const NAMED: [(&str, u32); 62] = [
    ("return", 0xff0d),
    ("enter", 0xff0d),
    ("tab", 0xff09),
    ("escape", 0xff1b),
    ("esc", 0xff1b),
    ("backspace", 0xff08),
    ("delete", 0xffff),
    ("del", 0xffff),
    ("insert", 0xff63),
    ("home", 0xff50),
    ("end", 0xff57),
    ("pageup", 0xff55),
    ("page_up", 0xff55),
    ("prior", 0xff55),
    ("pagedown", 0xff56),
    ("page_down", 0xff56),
    ("next", 0xff56),
    ("left", 0xff51),
    ("up", 0xff52),
    ("right", 0xff53),
    ("down", 0xff54),
    ("space", 0x20),
    ("menu", 0xff67),
    ("print", 0xff61),
    ("pause", 0xff13),
    ("caps_lock", 0xffe5),
    ("num_lock", 0xff7f),
    ("ctrl", 0xffe3),
    ("control", 0xffe3),
    ("control_l", 0xffe3),
    ("control_r", 0xffe4),
    ("shift", 0xffe1),
    ("shift_l", 0xffe1),
    ("shift_r", 0xffe2),
    ("alt", 0xffe9),
    ("alt_l", 0xffe9),
    ("alt_r", 0xffea),
    ("altgr", 0xfe03),
    ("super", 0xffeb),
    ("super_l", 0xffeb),
    ("meta", 0xffe7),
    ("win", 0xffeb),
    ("cmd", 0xffeb),
    ("plus", 0x2b),
    ("minus", 0x2d),
    ("equal", 0x3d),
    ("comma", 0x2c),
    ("period", 0x2e),
    ("slash", 0x2f),
    ("backslash", 0x5c),
    ("semicolon", 0x3b),
    ("apostrophe", 0x27),
    ("grave", 0x60),
    ("bracketleft", 0x5b),
    ("bracketright", 0x5d),
    ("kp_enter", 0xff8d),
    ("kp_add", 0xffab),
    ("kp_subtract", 0xffad),
    ("kp_multiply", 0xffaa),
    ("kp_divide", 0xffaf),
    ("underscore", 0x5f),
    ("colon", 0x3a),
];
const FIRST_FUNCTION_KEY: u32 = 0xffbe;
const FUNCTION_KEYS: u32 = 24;

/// The keysym of a character.
pub(super) fn symbol_of(character: char) -> u32 {
    match character {
        '\n' | '\r' => 0xff0d,
        '\t' => 0xff09,
        '\u{8}' => 0xff08,
        '\u{1b}' => 0xff1b,
        ' '..='~' | '\u{a0}'..='\u{ff}' => u32::from(character),
        _ => 0x0100_0000 | u32::from(character),
    }
}

/// The keysym of a named key or of a single character.
fn symbol_by_name(name: &str) -> Option<u32> {
    let mut characters = name.chars();
    if let (Some(only), None) = (characters.next(), characters.next()) {
        return Some(symbol_of(only));
    }
    let lower = name.to_ascii_lowercase();
    if let Some((_, symbol)) = NAMED.iter().find(|(known, _)| *known == lower) {
        return Some(*symbol);
    }
    let number: u32 = lower.strip_prefix('f')?.parse().ok()?;
    (1..=FUNCTION_KEYS).contains(&number).then(|| FIRST_FUNCTION_KEY + number - 1)
}

/// Parses keys to press together, such as `ctrl+shift+t`, into keysyms. The error is a message for the user.
pub(super) fn parse_chord(chord: &str) -> Result<Vec<u32>, String> {
    const MOST: usize = 8;
    // A trailing plus is the plus key itself.
    let (rest, last) = match chord.strip_suffix("++") {
        Some(rest) => (rest, Some("plus")),
        None if chord == "+" => ("", Some("plus")),
        None => (chord, None),
    };
    let names = rest.split('+').filter(|_| !rest.is_empty()).chain(last);
    let symbols: Result<Vec<u32>, String> = names
        .map(|name| {
            let name = name.trim();
            symbol_by_name(name).ok_or_else(|| {
                format!(
                    "there is no key `{name}` in `{chord}`; keys are single characters, F1 to F{FUNCTION_KEYS}, \
                     ctrl, shift, alt, super, and names such as Return, Tab, Escape, BackSpace, Delete, Home, End, \
                     PageUp, PageDown, Left, Right, Up, Down, space, plus"
                )
            })
        })
        .collect();
    match symbols? {
        symbols if symbols.is_empty() => Err("no key was named".to_owned()),
        symbols if symbols.len() > MOST => Err(format!("at most {MOST} keys can be pressed together")),
        symbols => Ok(symbols),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chords_keep_the_order_of_their_keys() {
        assert_eq!(parse_chord("ctrl+shift+t").unwrap(), [0xffe3, 0xffe1, u32::from('t')]);
        assert_eq!(parse_chord("Return").unwrap(), [0xff0d]);
        assert_eq!(parse_chord("F12").unwrap(), [0xffc9]);
        assert_eq!(parse_chord("ctrl++").unwrap(), [0xffe3, 0x2b]);
        assert_eq!(parse_chord("+").unwrap(), [0x2b]);
        assert_eq!(parse_chord("ctrl+ü").unwrap(), [0xffe3, 0xfc]);
        assert_eq!(parse_chord("日").unwrap(), [0x0100_65e5]);
    }

    #[test]
    fn unknown_key_error_lists_the_valid_keys() {
        let error = parse_chord("ctrl+flux").unwrap_err();
        assert!(error.contains("`flux`") && error.contains("PageUp"), "{error}");
        for bad in ["", "F99", "ctrl+", "a+b+c+d+e+f+g+h+i"] {
            assert!(parse_chord(bad).is_err(), "{bad}");
        }
    }
}
