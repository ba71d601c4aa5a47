//! Finds the text that an edit means although it is not in the file exactly as written: pasted line numbers, other line
//! ends, spaces at line ends.

/// The texts to use instead, and what to tell the model about the difference.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SimilarText {
    pub(super) old: String,
    pub(super) new: String,
    pub(super) note: &'static str,
}

/// The one place in the content that is meant by `old`; `None` if there is none or more than one, or if nothing would
/// change.
pub(super) fn similar_text(content: &str, old: &str, new: &str) -> Option<SimilarText> {
    let similar = match numbered_lines(old) {
        Some(lines) => numbered_text(content, &lines, new),
        None => unnumbered_text(content, old, new),
    };
    similar.filter(|similar| similar.old != similar.new)
}

/// The place that `old` means if it has the line numbers of `read_file`: the lines of the file with these numbers.
fn numbered_text(content: &str, lines: &[(usize, &str)], new: &str) -> Option<SimilarText> {
    let plain_old: String = lines.iter().map(|(_, text)| *text).collect();
    let plain_new = without_line_numbers(new);
    let new = plain_new.as_deref().unwrap_or(new);
    if plain_old == new {
        return None;
    }
    let start = lines.first()?.0.checked_sub(1)?;
    let file_lines: Vec<&str> = content.split_inclusive('\n').collect();
    let meant = file_lines.get(start..start.checked_add(lines.len())?)?;
    let is_same = lines.iter().zip(meant).enumerate().all(|(index, ((number, text), line))| {
        *number == start + index + 1 && text.trim_end() == line.trim_end()
    });
    let exact = meant.concat();
    let ends_line = lines.last()?.1.ends_with('\n');
    let exact = if ends_line { exact.as_str() } else { without_line_end(&exact) };
    (is_same && content.matches(exact).count() == 1).then(|| SimilarText {
        old: exact.to_owned(),
        new: with_line_ends_of(content, &plain_old, new),
        note: "the line numbers in `old` are not part of the file",
    })
}

/// The place that `old` means if only line ends or spaces at line ends differ.
fn unnumbered_text(content: &str, old: &str, new: &str) -> Option<SimilarText> {
    let with_ends = |text| with_line_ends_of(content, old, text);
    let exact = with_ends(old);
    if exact != old && content.matches(&exact).count() == 1 {
        let note = "the file has CRLF line ends, and keeps them";
        return Some(SimilarText { old: exact, new: with_ends(new), note });
    }
    let exact = lines_without_trailing_space(content, old)?.to_owned();
    let note = "spaces at line ends were ignored to find `old`";
    Some(SimilarText { old: exact, new: with_ends(new), note })
}

/// A text with CRLF line ends if the file has them and `old` does not.
fn with_line_ends_of(content: &str, old: &str, text: &str) -> String {
    if content.contains("\r\n") && !old.contains('\r') {
        text.replace("\r\n", "\n").replace('\n', "\r\n")
    } else {
        text.to_owned()
    }
}

fn without_line_end(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

/// The text without the numbers that `read_file` shows before each line; `None` if a line has none.
pub(super) fn without_line_numbers(text: &str) -> Option<String> {
    Some(numbered_lines(text)?.into_iter().map(|(_, line)| line).collect())
}

/// The number and the text of each line as `read_file` shows them; `None` if a line has no number, or all are empty.
fn numbered_lines(text: &str) -> Option<Vec<(usize, &str)>> {
    let mut lines = Vec::new();
    for line in text.split_inclusive('\n') {
        let rest = line.trim_start_matches(' ');
        let (number, rest) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
        // An empty line may have lost its spaces.
        let rest = rest.strip_prefix("  ").or_else(|| rest.trim().is_empty().then_some(rest))?;
        lines.push((number.parse().ok()?, rest));
    }
    lines.iter().any(|(_, line)| !line.trim().is_empty()).then_some(lines)
}

/// The only run of whole lines that equals `old` apart from spaces at line ends.
fn lines_without_trailing_space<'a>(content: &'a str, old: &str) -> Option<&'a str> {
    let wanted: Vec<&str> = old.lines().map(str::trim_end).collect();
    let lines: Vec<&str> = content.split_inclusive('\n').collect();
    if wanted.iter().all(|line| line.is_empty()) || wanted.len() > lines.len() {
        return None;
    }
    let mut offset = 0;
    let mut found = None;
    for (at, window) in lines.windows(wanted.len()).enumerate() {
        if window.iter().zip(&wanted).all(|(line, wanted)| line.trim_end() == *wanted) {
            if found.is_some() {
                return None;
            }
            let length: usize = window.iter().map(|line| line.len()).sum();
            found = Some(&content[offset..offset + length]);
        }
        offset += lines[at].len();
    }
    // Without a line end in `old`, that of the file stays.
    let ends_line = old.ends_with('\n');
    found.map(|text| if ends_line { text } else { without_line_end(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(content: &str, old: &str, new: &str) -> Option<String> {
        similar_text(content, old, new).map(|similar| content.replacen(&similar.old, &similar.new, 1))
    }

    #[test]
    fn pasted_line_numbers_are_ignored() {
        let content = "def f():\n    return 1\n\nprint(f())\n";
        let old = "    1  def f():\n    2      return 1\n    3\n";
        assert_eq!(edited(content, old, "def f():\n    return 2\n\n").unwrap(), content.replace('1', "2"));
        let new = "    1  def f():\n    2      return 2\n    3\n";
        assert_eq!(edited(content, old, new).unwrap(), content.replace('1', "2"));
    }

    #[test]
    fn line_numbers_must_be_those_of_the_file() {
        let content = "a\nb\nyy\nexit\n";
        assert_eq!(
            similar_text(content, "    3  x", "    3  z"),
            None,
            "line 3 has changed, and `exit` has an x"
        );
        assert_eq!(similar_text(content, "    3  y", "    3  z"), None, "only a part of the line");
        assert_eq!(similar_text(content, "    4  yy", "    4  z"), None, "another line");
        assert_eq!(similar_text(content, "    1  a\n    3  b\n", "z\n"), None, "not consecutive");
        assert_eq!(similar_text(content, "    0  a", "z"), None);
        assert_eq!(similar_text(content, "    4  exit\n    5  more\n", "z"), None, "the file is shorter");
        assert_eq!(edited(content, "    3  yy", "    3  z").unwrap(), "a\nb\nz\nexit\n");
        assert_eq!(edited("a\n\nb\n", "    1  a\n    2", "z\n").unwrap(), "z\n\nb\n");
        assert_eq!(edited("a\r\nb \r\n", "    1  a\n    2  b\n", "c\n").unwrap(), "c\r\n");
    }

    #[test]
    fn an_edit_without_a_change_is_none() {
        assert_eq!(similar_text("10\tapples\n", "10  apples", "12  apples"), None);
        assert_eq!(similar_text("apples\n", "1  apples", "2  apples"), None);
        assert_eq!(similar_text("apples  \n", "1  apples", "apples"), None);
        assert_eq!(similar_text("one  \n", "one ", "one  "), None);
    }

    #[test]
    fn line_ends_of_the_file_are_kept() {
        let content = "one\r\ntwo\r\nthree\r\n";
        assert_eq!(edited(content, "one\ntwo\n", "1\n2\n").unwrap(), "1\r\n2\r\nthree\r\n");
    }

    #[test]
    fn spaces_at_line_ends_are_ignored() {
        let content = "one  \ntwo\t\nthree\n";
        assert_eq!(edited(content, "one\ntwo", "1\n2").unwrap(), "1\n2\nthree\n");
        assert_eq!(edited("one \nx\none \n", "one  ", "1"), None, "it is not clear which one");
    }

    #[test]
    fn other_texts_are_not_guessed() {
        assert_eq!(similar_text("one\ntwo\n", "three", "3"), None);
        assert_eq!(similar_text("one\ntwo\n", "\n", "3"), None);
        assert_eq!(similar_text("", "a\nb", "3"), None);
    }
}
