//! Validates `xdotool` scripts before they run.

pub const MAX_SCRIPT_BYTES: usize = 64 * 1024;

/// The buffer size of xdotool; it would treat the rest of a longer line as a new command.
const MAX_LINE_BYTES: usize = 4000;

/// Rejects what xdotool would silently misinterpret.
pub fn check_script(script: &str) -> Result<(), String> {
    if script.trim().is_empty() {
        return Err("is empty".into());
    }
    if script.len() > MAX_SCRIPT_BYTES || script.contains('\0') {
        return Err(format!("has a NUL character or more than {MAX_SCRIPT_BYTES} bytes"));
    }
    for (index, line) in script.lines().enumerate() {
        let number = index + 1;
        if line.len() > MAX_LINE_BYTES {
            return Err(format!("line {number} has more than {MAX_LINE_BYTES} bytes"));
        }
        if let Some(quote) = open_quote(line) {
            return Err(format!("line {number} has a quote ({quote}) that is not closed"));
        }
    }
    Ok(())
}

/// The quote that a line opens and does not close. Like in xdotool, a quote counts only at the start of a word.
fn open_quote(line: &str) -> Option<char> {
    let mut rest = line.trim_start();
    if rest.starts_with('#') {
        return None;
    }
    while let Some(first) = rest.chars().next() {
        rest = if matches!(first, '\'' | '"') {
            match rest.get(1..)?.split_once(first) {
                Some((_, after)) => after,
                None => return Some(first),
            }
        } else {
            rest.split_once(char::is_whitespace).map_or("", |(_, after)| after)
        };
        rest = rest.trim_start();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unclosed_quote_is_refused_with_its_line_number() {
        for (script, said) in [
            ("type 'unterminated", "line 1 has a quote (')"),
            ("mousemove 1 1\ntype \"a 'b\nclick 1", "line 2 has a quote (\")"),
            ("type 'a' 'b", "line 1 has a quote (')"),
            (" ", "is empty"),
        ] {
            let problem = check_script(script).unwrap_err();
            assert!(problem.starts_with(said), "{script}: {problem}");
        }
        for script in
            ["type 'a b' \"it's\"", "type don't", "# it's a note\nclick 1", "type '' \"\"", "key a\r\nkey b"]
        {
            assert_eq!(check_script(script), Ok(()), "{script}");
        }
        assert!(check_script(&format!("type {}", "x".repeat(5000))).unwrap_err().contains("line 1"));
    }
}
