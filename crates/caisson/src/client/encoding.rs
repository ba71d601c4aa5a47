//! Percent-encoding of paths and parameters in URLs.

/// Percent-encodes a path, or the value of a query parameter. A slash stays a slash.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(char::from(byte))
            }
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_percent_encoded() {
        assert_eq!(encode("a b/c?d#e%.txt"), "a%20b/c%3Fd%23e%25.txt");
        assert_eq!(encode("ä&b=c"), "%C3%A4%26b%3Dc");
    }
}
