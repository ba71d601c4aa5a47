//! Filters cookies between a browser and a job: the server's own cookies pass in neither direction, and a job cannot
//! set cookies for other origins.

/// The prefix of the server's own cookies. Jobs can neither read nor set them.
pub(super) const OWN: &str = "caisson";
/// Cookie name prefixes with a special meaning for browsers, compared case-insensitively.
const PREFIXES: [&str; 2] = ["__host-", "__secure-"];

/// The cookies of a request without the server's own. `None` if there are no others.
pub(super) fn without_own<'a>(lines: impl Iterator<Item = &'a str>) -> Option<String> {
    let kept: Vec<&str> =
        lines.flat_map(|line| line.split(';')).map(str::trim).filter(|pair| !is_own(pair)).collect();
    if kept.is_empty() { None } else { Some(kept.join("; ")) }
}

/// A `Set-Cookie` value of a job, without its `Domain` attribute. `None` for one of the server's own cookies.
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
    // Browsers send a cookie without a name as its bare value, which may look like a named one.
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
