//! Finds symbolic links of a workspace that point outside of it. They are left out of the zip: on the machine where
//! a user unpacks it, such a link would point to a local file.
//!
//! A link is resolved through all other links of the workspace, as a file system would do. The target alone is not
//! enough: with `p/q/r/l -> ../../../s`, `p/q/r/l/../..` is outside, although its text stays inside.

use std::collections::HashMap;

/// Maximum number of links to follow while resolving one path; as in Linux.
const MAX_LINKS: usize = 40;
/// Maximum work for all links of a workspace together, in bytes of the paths that are looked up. Roughly 10 million
/// steps.
const MAX_WORK: usize = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EscapeReason {
    Absolute,
    Escapes,
    /// There are too many links with too long paths to check all of them.
    Unchecked,
}

impl EscapeReason {
    /// The reason code for the manifest.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Absolute => "absolute_link",
            Self::Escapes => "link_leads_out",
            Self::Unchecked => "link_not_checked",
        }
    }
}

/// The targets of the links, by path.
#[derive(Debug, Default)]
pub(super) struct Links {
    targets: HashMap<String, String>,
    work: usize,
}

impl Links {
    pub(super) fn add(&mut self, path: &str, target: &str) {
        self.targets.insert(path.to_owned(), target.to_owned());
    }

    /// Whether and how a link leads out of the workspace. A dangling or circular link does not.
    pub(super) fn escape_reason(&mut self, path: &str) -> Option<EscapeReason> {
        let target = self.targets.get(path)?;
        if target.starts_with('/') {
            return Some(EscapeReason::Absolute);
        }
        // A malicious stream may put a link below another link.
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        follow(&self.targets, &mut self.work, [parent, target])
    }
}

/// Resolves a path from the root of the workspace, and then another path from there.
fn follow(
    targets: &HashMap<String, String>,
    work: &mut usize,
    [first, then]: [&str; 2],
) -> Option<EscapeReason> {
    let mut here = String::new();
    let mut left = vec![then.split('/'), first.split('/')];
    let mut links = 0;
    while let Some(parts) = left.last_mut() {
        let Some(part) = parts.next() else {
            left.pop();
            continue;
        };
        *work = work.saturating_add(here.len() + part.len() + 1);
        if *work > MAX_WORK {
            return Some(EscapeReason::Unchecked);
        }
        match part {
            "" | "." => {}
            ".." if here.is_empty() => return Some(EscapeReason::Escapes),
            ".." => here.truncate(here.rfind('/').unwrap_or(0)),
            name => {
                let above = here.len();
                if !here.is_empty() {
                    here.push('/');
                }
                here.push_str(name);
                let Some(next) = targets.get(&here) else { continue };
                if next.starts_with('/') {
                    return Some(EscapeReason::Escapes);
                }
                links += 1;
                if links > MAX_LINKS {
                    return None;
                }
                left.push(next.split('/'));
                here.truncate(above);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(links: &[(&str, &str)]) -> Links {
        let mut all = Links::default();
        for (path, target) in links {
            all.add(path, target);
        }
        all
    }

    #[test]
    fn links_that_stay_inside_are_kept_even_if_dangling() {
        let mut links = of(&[
            ("a", "b"),
            ("d/e/up", "../../b"),
            ("d/here", "."),
            ("root", "d/.."),
            ("gone", "no/such/file"),
        ]);
        for path in ["a", "d/e/up", "d/here", "root", "gone"] {
            assert_eq!(links.escape_reason(path), None, "{path}");
        }
    }

    #[test]
    fn absolute_and_escaping_links_are_found() {
        let mut links =
            of(&[("abs", "/workspace/a"), ("up", ".."), ("d/up", "../../x"), ("odd", "a/./..//../x")]);
        assert_eq!(links.escape_reason("abs"), Some(EscapeReason::Absolute));
        for path in ["up", "d/up", "odd"] {
            assert_eq!(links.escape_reason(path), Some(EscapeReason::Escapes), "{path}");
        }
    }

    #[test]
    fn links_are_resolved_through_other_links() {
        let mut links = of(&[
            ("p/q/r/l", "../../../s"),
            ("inside", "p/q/r/l/.."),
            ("outside", "p/q/r/l/../.."),
            ("abs", "/etc"),
            ("through", "abs/passwd"),
            ("d/top", ".."),
            ("d/top/x", "../y"),
        ]);
        assert_eq!((links.escape_reason("p/q/r/l"), links.escape_reason("inside")), (None, None));
        // The last link is below another link; judged by its text alone, it would stay inside.
        for path in ["outside", "through", "d/top/x"] {
            assert_eq!(links.escape_reason(path), Some(EscapeReason::Escapes), "{path}");
        }
    }

    #[test]
    fn circular_links_do_not_escape() {
        let mut links = of(&[("a", "b"), ("b", "a"), ("self", "self/x")]);
        for path in ["a", "b", "self"] {
            assert_eq!(links.escape_reason(path), None, "{path}");
        }
    }

    #[test]
    fn links_that_are_too_expensive_to_resolve_are_left_out() {
        let long = "d/../".repeat(800) + "next";
        let mut links = Links::default();
        for number in 0..40 {
            links.add(&format!("n{number}"), &long.replace("next", &format!("n{}", number + 1)));
        }
        links.work = MAX_WORK - 1000;
        assert_eq!(links.escape_reason("n0"), Some(EscapeReason::Unchecked));
    }
}
