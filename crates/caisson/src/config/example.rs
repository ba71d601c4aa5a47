//! The known settings, read from `caisson.example.toml`, which lists each with its meaning and default.

use job::edit_distance;

/// The shipped example.
pub(crate) const EXAMPLE: &str = include_str!("../../../../caisson.example.toml");
/// Sections whose keys are chosen by the user.
const OPEN: [&str; 2] = ["secrets", "mcp"];

/// A setting described in the example.
pub(crate) struct KnownSetting {
    pub(crate) key: String,
    pub(crate) default: Option<String>,
    pub(crate) about: String,
}

/// Whether a setting's key is chosen by the user.
pub(crate) fn is_open(key: &str) -> bool {
    OPEN.iter().any(|section| key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')))
}

/// Parses the example: one setting per line, its meaning in the comment above; settings without a default are
/// commented out.
pub(crate) fn known_settings(example: &str) -> Vec<KnownSetting> {
    let mut known: Vec<KnownSetting> = Vec::new();
    let (mut section, mut about, mut is_new) = (String::new(), String::new(), true);
    // Lines that are indented further show a sample of a whole section.
    for line in example.lines().filter(|line| !line.starts_with("#   ")) {
        let comment = line.strip_prefix('#').map(str::trim);
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = format!("{name}.");
            about.clear();
        } else if let Some((name, value)) =
            comment.unwrap_or(line).split_once(" = ").filter(|(name, _)| is_name(name))
        {
            let default = comment.is_none().then(|| value.to_owned());
            known.push(KnownSetting { key: format!("{section}{name}"), default, about: about.clone() });
            is_new = true;
        } else if let Some(comment) = comment {
            if std::mem::take(&mut is_new) {
                about.clear();
            } else if !about.is_empty() {
                about.push(' ');
            }
            about += comment;
        } else {
            about.clear();
            is_new = true;
        }
    }
    known
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// The message for an unknown key.
pub(crate) fn unknown_key(key: &str, known: &[KnownSetting]) -> String {
    let (section, name) = split(key);
    let near = known.iter().map(|known| (edit_distance(&known.key, key), known.key.as_str())).min();
    // Short words are similar to everything, so they allow fewer differences.
    let most = (name.len() / 3).clamp(1, 3);
    if let Some((_, near)) = near.filter(|(edit_distance, _)| *edit_distance <= most) {
        return format!("{key}: unknown setting; did you mean {near}?");
    }
    let elsewhere: Vec<String> = known
        .iter()
        .map(|known| split(&known.key))
        .filter(|(_, other)| *other == name)
        .map(|(section, _)| {
            if section.is_empty() {
                "at the top, before any section".to_owned()
            } else {
                format!("below [{section}]")
            }
        })
        .collect();
    if !elsewhere.is_empty() {
        let here =
            if section.is_empty() { "outside of a section".into() } else { format!("below [{section}]") };
        let elsewhere = elsewhere.join(" or ");
        return format!("{key}: unknown setting {here}; `{name}` belongs {elsewhere}");
    }
    let names: Vec<&str> =
        known.iter().map(|known| known.key.as_str()).filter(|key| split(key).0 == section).collect();
    if names.is_empty() {
        return format!("{key}: unknown section [{section}]; caisson.example.toml lists every setting");
    }
    format!("{key}: unknown setting; expected one of {}", names.join(", "))
}

/// The section of a setting, empty at the top level, and its name in it.
fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('.').unwrap_or(("", key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misplaced_setting_error_names_its_section() {
        let known = known_settings(EXAMPLE);
        let message = |key| unknown_key(key, &known);
        assert_eq!(
            message("size"),
            "size: unknown setting outside of a section; `size` belongs below [pool]"
        );
        assert!(
            message("jobs.memory_mib")
                .ends_with("below [jobs]; `memory_mib` belongs below [limits] or below [limits.max]")
        );
        assert!(message("jobs.max_runing").ends_with("did you mean jobs.max_running?"));
        assert!(
            message("pool.log").ends_with("`log` belongs at the top, before any section"),
            "{}",
            message("pool.log")
        );
    }

    #[test]
    fn sample_sections_are_not_parsed_as_settings() {
        let known = known_settings(EXAMPLE);
        let keys: Vec<&str> = known.iter().map(|known| known.key.as_str()).collect();
        assert!(keys.contains(&"context.embeddings_key_file") && keys.contains(&"sandbox.isolation"));
        assert!(!keys.contains(&"context.url") && !keys.contains(&"context.jobs"), "{keys:?}");
    }
}
