//! What the errors of serde about types and the errors of Rust's parsers mean, in plain words.

use super::explain::shortened;

/// Fragments of the messages of serde, `serde_json` and Rust's parsers. Tests assert that no user sees one.
pub const SERDE_WORDING: [&str; 26] = [
    "invalid type",
    "invalid value: ",
    "invalid length",
    "invalid digit",
    "invalid float",
    "invalid socket address",
    "integer from empty string",
    "fit in target type",
    "provided string",
    ", expected ",
    "missing field",
    "duplicate field",
    "unknown variant",
    "any variant",
    "a map",
    "a sequence",
    "unit value",
    "floating point",
    "struct ",
    "enum ",
    "u64",
    "u32",
    "i32",
    "f64",
    "EOF",
    "while parsing",
];

/// Messages of Rust's parsers, and what they mean.
const PARSER_ERRORS: [(&str, &str); 14] = [
    ("invalid digit found in string", "must be a whole number"),
    ("cannot parse integer from empty string", "must be a whole number, not empty"),
    ("number too large to fit in target type", "must be a smaller number"),
    ("number too small to fit in target type", "must be a larger number"),
    ("number would be zero for non-zero type", "must not be 0"),
    ("invalid float literal", "must be a number"),
    ("cannot parse float from empty string", "must be a number, not empty"),
    ("provided string was not `true` or `false`", "must be true or false"),
    ("too many characters in string", "must be a single character"),
    ("cannot parse char from empty string", "must be a single character"),
    ("invalid socket address syntax", "must be an address with a port, such as 127.0.0.1:8000"),
    ("invalid IPv4 address syntax", "must be an IPv4 address"),
    ("invalid IPv6 address syntax", "must be an IPv6 address"),
    ("invalid IP address syntax", "must be an IP address"),
];

/// The message with the errors of Rust's parsers in plain words: `must be a whole number` for `invalid digit found in
/// string`.
#[must_use]
pub fn plain_parser_error(message: &str) -> String {
    PARSER_ERRORS.iter().fold(message.to_owned(), |text, (rust, plain)| text.replace(rust, plain))
}

/// The problem for a type error: `must be a list, not an object` for `invalid type: map, expected a sequence`. `None`
/// for other messages.
pub(super) fn plain_type_error(message: &str) -> Option<String> {
    if message.starts_with("data did not match any variant") {
        return Some("has none of the allowed forms".into());
    }
    let (found, expected) = ["invalid type: ", "invalid value: ", "invalid length "]
        .iter()
        .find_map(|mark| message.strip_prefix(mark))?
        .rsplit_once(", expected ")?;
    let found = match message.starts_with("invalid length ") {
        true => format!("a list of {found}"),
        false => plain_found(found),
    };
    let expected = match expected {
        // The range only matters for a number that is outside of it.
        _ if message.starts_with("invalid type: ") && is_integer(expected) => "a whole number".to_owned(),
        _ => plain_expected(expected),
    };
    Some(format!("must be {expected}, not {found}"))
}

/// Whether this is the name of a Rust type of whole numbers.
fn is_integer(expected: &str) -> bool {
    let name = expected.strip_prefix("a nonzero ").unwrap_or(expected);
    let size = name.strip_prefix(['u', 'i']);
    size.is_some_and(|size| size == "size" || size.parse::<u8>().is_ok())
}

fn plain_found(found: &str) -> String {
    let quoted = |kind: &str| found.strip_prefix(kind)?.strip_suffix('`');
    match found {
        "map" => "an object".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" | "unit value" | "Option value" => "null".to_owned(),
        "byte array" => "bytes".to_owned(),
        _ => {
            if let Some(number) = quoted("integer `").or_else(|| quoted("floating point `")) {
                format!("the number {number}")
            } else if let Some(value) = quoted("boolean `") {
                value.to_owned()
            } else if let Some(text) = found.strip_prefix("string \"").and_then(|rest| rest.strip_suffix('"'))
            {
                format!("the string \"{}\"", shortened(text))
            } else {
                found.to_owned()
            }
        }
    }
}

fn plain_expected(expected: &str) -> String {
    let length = |kind: &str| expected.strip_prefix(kind);
    if let Some(count) = length("an array of length ").or_else(|| length("a tuple of size ")) {
        return format!("a list of {count}");
    }
    let plain = match expected {
        "u8" | "a nonzero u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "a nonzero u16" => "a whole number from 1 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" | "u128" => "a whole number, 0 or more",
        "a nonzero u32" | "a nonzero u64" | "a nonzero usize" => "a whole number, 1 or more",
        "i8" => "a whole number from -128 to 127",
        "i16" => "a whole number from -32768 to 32767",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "i64" | "isize" | "i128" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "path string" | "a borrowed string" | "variant identifier" | "field identifier" | "a string key" => {
            "a string"
        }
        "a sequence" | "byte array" => "a list",
        "a map" => "an object",
        "string or map" => "a string or an object",
        "socket address" => "an address with a port, such as 127.0.0.1:8000",
        "IP address" => "an IP address",
        "unit" | "option" => "null",
        _ if expected.starts_with("enum ") => "a string",
        _ if ["struct ", "internally tagged enum ", "adjacently tagged enum "]
            .iter()
            .any(|kind| expected.starts_with(kind)) =>
        {
            "an object"
        }
        _ => expected,
    };
    plain.to_owned()
}
