//! Reads environment variables, and detects those that look like settings but are not, which is most likely a typo.

use job::edit_distance;

/// The prefix of all variables of this product.
const PREFIX: &str = "CAISSON_";
/// The prefix of the tests' variables.
const TEST_PREFIX: &str = "CAISSON_TEST_";
/// Every variable read by the server, by commands, or by image builds.
const KNOWN_VARIABLES: [&str; 15] = [
    "CAISSON_BACKEND",
    "CAISSON_CA",
    "CAISSON_CONFIG",
    "CAISSON_DATA",
    "CAISSON_DOCKER_HOST",
    "CAISSON_IMAGES",
    "CAISSON_KEY",
    "CAISSON_LISTEN",
    "CAISSON_LOG",
    "CAISSON_MIRROR",
    "CAISSON_MODEL",
    "CAISSON_RUN_DIR",
    "CAISSON_SECURITY_MIRROR",
    "CAISSON_TAKEOVER",
    "CAISSON_URL",
];

/// An environment variable; `None` if it is empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Warnings about unknown variables of this process. Variables that the configuration refers to are known.
pub(crate) fn unknown_variables(configuration: &str) -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    unknown(names, configuration)
}

fn unknown(names: impl Iterator<Item = String>, configuration: &str) -> Vec<String> {
    let is_unknown = |name: &String| {
        name.starts_with(PREFIX)
            && !name.starts_with(TEST_PREFIX)
            && !KNOWN_VARIABLES.contains(&name.as_str())
            && !configuration.contains(name.as_str())
    };
    let mut names: Vec<String> = names.filter(is_unknown).collect();
    names.sort_unstable();
    let warning = |name: &String| {
        let near = KNOWN_VARIABLES.iter().map(|read| (edit_distance(read, name), *read)).min();
        let meant = near.filter(|(edit_distance, _)| *edit_distance <= 2).map_or_else(
            || format!("known variables: {}", KNOWN_VARIABLES.join(", ")),
            |(_, near)| format!("did you mean {near}?"),
        );
        format!("{name}: unknown environment variable; {meant}")
    };
    names.iter().map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variable_gets_a_suggestion() {
        let warnings =
            |names: &[&str], file: &str| unknown(names.iter().map(|name| (*name).to_owned()), file);
        let [alone] = &warnings(&["PATH", "CAISSON_LISTN", "CAISSON_DATA", "CAISSON_TEST_IMAGES"], "")[..]
        else {
            panic!("not one")
        };
        assert!(
            alone.starts_with("CAISSON_LISTN: ") && alone.ends_with("did you mean CAISSON_LISTEN?"),
            "{alone}"
        );
        assert!(warnings(&["CAISSON_COLOUR"], "")[0].contains("known variables: CAISSON_BACKEND"));
        assert!(warnings(&["CAISSON_GITHUB"], "[secrets]\nA = { variable = \"CAISSON_GITHUB\" }").is_empty());
    }
}
