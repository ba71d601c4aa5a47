//! Tests of which forms of a value are masked.

use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;

use super::*;

#[test]
fn value_is_redacted_in_each_form() {
    let value = "s3cr3t/+value \"x\"";
    let redactor = Redactor::new([value]);
    let json = serde_json::to_string(value).unwrap();
    for form in
        [value.to_owned(), json, "s3cr3t%2F%2Bvalue%20%22x%22".into(), "s3cr3t%2f%2bvalue%20%22x%22".into()]
    {
        let covered = redactor.redact_text(&format!("before {form} after"));
        assert!(
            covered.starts_with("before ") && covered.ends_with(" after") && covered.contains("****"),
            "{covered}"
        );
        assert!(!covered.contains("s3cr3t"), "{covered}");
    }
}

#[test]
fn url_encoded_values_are_redacted() {
    let redactor = Redactor::new(["a/b c!d'e(f)*g~h"]);
    for form in [
        "a/b%20c%21d%27e%28f%29%2Ag~h", // Python: quote
        "a%2Fb+c%21d%27e%28f%29%2Ag~h", // Python: quote_plus
        "a%2Fb%20c!d'e(f)*g~h",         // JavaScript: encodeURIComponent
        "a/b%20c!d'e(f)*g~h",           // JavaScript: encodeURI
        "a%2Fb+c%21d%27e%28f%29*g%7Eh", // JavaScript: URLSearchParams
    ] {
        assert_eq!(redactor.redact_text(form), "*".repeat(form.len()), "{form}");
    }
}

#[test]
fn escaped_and_encoded_values_are_redacted() {
    let redactor = Redactor::new(["tok/en=a&b+\"c'<d"]);
    for form in [
        r#"tok\/en=a&b+\"c'<d"#,                                   // PHP: json_encode
        r#"tok/en\u003da\u0026b+\"c\u0027\u003cd"#,                // Gson, Go, Jinja
        r#"tok\\/en\\u003Da\\u0026b+\\\"c'\\u003Cd"#,              // JSON in JSON
        "tok/en=a&amp;b+&quot;c&#39;&lt;d",                        // most HTML
        "tok&#x2F;en&#x3D;a&amp;b+&#34;c&#x27;&lt;d",              // OWASP, Mustache
        "tok&sol;en&equals;a&amp;amp;b&plus;&quot;c&apos;&lt;d",   // by name, and nested
        r#"tok/en=a\u0026amp;b+\u0026quot;c\u0026#39;\u0026lt;d"#, // HTML in JSON
        "tok/en=3Da&b+\"c'<d",                                     // quoted-printable
        "tok/=\r\nen=3Da&b+=\n\"c'<d",                             // the same, with soft line breaks
        "tok%252Fen%253Da%2526b%252B%2522c%2527%253Cd",            // URL-encoded twice
        r"tok\x2fen\x3da\x26b\x2b\x22c\x27\x3cd",                  // JavaScript, Python
        "746f6b2f656e3d6126622b226327 3c64",
        "74:6F:6B:2F:65:6E:3D:61:26:62:2B:22:63:27:3C:64",
    ] {
        assert_eq!(redactor.redact_text(form), "*".repeat(form.len()), "{form}");
    }
}

#[test]
fn wide_characters_are_covered() {
    for value in ["a-value-of-mine", "grün-und-geheim"] {
        let redactor = Redactor::new([value]);
        let mut wide: Vec<Vec<u8>> = vec![value.encode_utf16().flat_map(u16::to_le_bytes).collect()];
        wide.push(value.encode_utf16().flat_map(u16::to_be_bytes).collect());
        wide.push(value.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect());
        wide.push(value.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect());
        for mut bytes in wide {
            assert_eq!(redactor.cover(&mut bytes), 1, "{bytes:?}");
            assert!(bytes.iter().all(|byte| [0, b'*'].contains(byte)), "{bytes:?}");
        }
    }
}

#[test]
fn wrapped_and_escaped_base64_is_redacted() {
    let value = "value>>with??slashes~~and-more";
    let redactor = Redactor::new([value]);
    let encoded = STANDARD.encode(format!("user:{value}"));
    let hidden = |text: &str| text.contains("********************");
    for end in ["\n", "\r\n", "\\n", "\r\n    ", "=\r\n"] {
        let (one, two) = encoded.split_at(20);
        assert!(hidden(&redactor.redact_text(&format!("{one}{end}{two}"))), "{end:?}");
    }
    assert!(hidden(&redactor.redact_text(&encoded.replace('/', "\\/").replace('+', "%2B"))));
}

#[test]
fn empty_redactor_changes_nothing() {
    assert_eq!(Redactor::new(["short"]).redact_text("a short text"), "a short text");
    assert!(Redactor::new([]).is_idle());
}

#[test]
fn overlapping_values_are_redacted_completely() {
    let redactor = Redactor::new(["common-part", "common-part-and-more"]);
    let mut stream = redactor.stream();
    assert_eq!(stream.push(Bytes::from_static(b"x common-part")), "x ");
    assert_eq!(stream.push(Bytes::from_static(b"-and-more")), "********************");
    assert_eq!(stream.push(Bytes::from_static(b" common-part")), " ");
    assert_eq!(stream.finish(), "***********");
    assert_eq!(stream.found(), 2);
}

#[test]
fn value_of_escape_characters_is_searched_in_bounded_time() {
    let value = "\\".repeat(20);
    let redactor = Redactor::new([value.as_str()]);
    assert!(redactor.finds(value.repeat(2).as_bytes()));
    assert!(!redactor.finds(format!("{}x", "\\".repeat(19)).repeat(3).as_bytes()));
}

/// A character in one of many encodings.
fn written(character: char, way: usize) -> String {
    let number = u32::from(character);
    match way {
        0 => format!("%{number:02x}"),
        1 => format!("\\u{number:04X}"),
        2 => format!("&#{number};"),
        3 => format!("&#x{number:x};"),
        4 => format!("={number:02X}"),
        5 => format!("\\x{number:02x}"),
        _ => character.to_string(),
    }
}

proptest! {
    #[test]
    fn value_inside_longer_base64_is_found(
        value in "[ -~]{12,40}", before in proptest::collection::vec(any::<u8>(), 0..7),
        after in proptest::collection::vec(any::<u8>(), 0..7),
    ) {
        let redactor = Redactor::new([value.as_str()]);
        let mut bytes = before;
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(&after);
        prop_assert!(redactor.finds(STANDARD.encode(&bytes).as_bytes()));
        prop_assert!(redactor.finds(URL_SAFE_NO_PAD.encode(&bytes).as_bytes()));
    }

    #[test]
    fn value_is_redacted_for_any_escaping_and_chunking(
        value in "[ -~]{8,20}", ways in proptest::collection::vec(0usize..8, 20), cuts in proptest::collection::vec(1usize..9, 1..40),
    ) {
        let redactor = Redactor::new([value.as_str()]);
        let form: String = value.chars().zip(&ways).map(|(character, way)| written(character, *way)).collect();
        let whole = format!("<{form}>{form}!");
        let mut stream = redactor.stream();
        let (mut shown, mut rest) = (Vec::new(), whole.as_bytes());
        for cut in cuts {
            let (piece, left) = rest.split_at(cut.min(rest.len()));
            shown.extend(stream.push(Bytes::copy_from_slice(piece)));
            rest = left;
        }
        shown.extend(stream.push(Bytes::copy_from_slice(rest)));
        shown.extend(stream.finish());
        let shown = String::from_utf8(shown).unwrap();
        prop_assert_eq!(&shown, &redactor.redact_text(&whole));
        let stars = "*".repeat(form.len());
        prop_assert!(shown == format!("<{stars}>{stars}!") || value.contains(['<', '>', '*', '!']), "{}", shown);
    }

    #[test]
    fn chunked_redaction_equals_whole_redaction(
        value in "[a-z0-9]{8,20}", before in "[A-Z]{0,30}", after in "[A-Z]{0,30}", cuts in proptest::collection::vec(1usize..9, 1..40),
    ) {
        let redactor = Redactor::new([value.as_str()]);
        let whole = format!("{before}{value}{after}{value}");
        let mut stream = redactor.stream();
        let (mut shown, mut rest) = (Vec::new(), whole.as_bytes());
        for cut in cuts {
            let (piece, left) = rest.split_at(cut.min(rest.len()));
            shown.extend(stream.push(Bytes::copy_from_slice(piece)));
            rest = left;
        }
        shown.extend(stream.push(Bytes::copy_from_slice(rest)));
        shown.extend(stream.finish());
        prop_assert_eq!(shown.len(), whole.len());
        prop_assert_eq!(String::from_utf8(shown).unwrap(), redactor.redact_text(&whole));
    }
}
