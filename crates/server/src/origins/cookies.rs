//! Cookies between a browser and a job: those of the server itself go neither way, and none reaches another origin.

/// How the cookies of the server itself begin: no job sees them, no job sets them.
pub(super) const OWN: &str = "caisson";
/// What browsers take for a promise about a cookie, in any case of letters.
const PREFIXES: [&str; 2] = ["__host-", "__secure-"];

/// The cookies of the lines of a request but for the server's own; `None` where there are no others.
pub(super) fn without_own<'a>(lines: impl Iterator<Item = &'a str>) -> Option<String> {
    let kept: Vec<&str> =
        lines.flat_map(|line| line.split(';')).map(str::trim).filter(|pair| !is_own(pair)).collect();
    if kept.is_empty() { None } else { Some(kept.join("; ")) }
}

/// What a job sets, for its own origin, whatever it asked for; `None` for a cookie that is the server's.
pub(super) fn own_origin_only(cookie: &str) -> Option<String> {
    if is_own(cookie) {
        return None;
    }
    let is_domain =
        |part: &&str| part.trim().get(..6).is_some_and(|name| name.eq_ignore_ascii_case("domain"));
    let (first, rest) = cookie.split_once(';').unwrap_or((cookie, ""));
    let kept = rest.split(';').filter(|part| !part.trim().is_empty() && !is_domain(part));
    Some(std::iter::once(first).chain(kept).collect::<Vec<_>>().join(";"))
}

fn is_own(cookie: &str) -> bool {
    // One without a name is sent back as its value, which may look like another with a name.
    let mut name = cookie.trim_start_matches(|letter: char| letter.is_whitespace() || letter == '=');
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| without_prefix(name, prefix)) {
        name = rest;
    }
    without_prefix(name, OWN).is_some()
}

fn without_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}
