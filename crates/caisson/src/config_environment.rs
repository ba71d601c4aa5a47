//! Detects environment variables that look like settings but are not, which is most likely a typo.

use crate::config_example::distance;

/// The prefix of all variables of this product.
const PREFIX: &str = "CAISSON_";
/// The prefix of the tests' variables.
const OF_TESTS: &str = "CAISSON_TEST_";
/// Every variable read by the server, by commands, or by image builds.
const READ: [&str; 15] = [
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

/// Warnings about unknown variables of this process. Variables that the configuration refers to are known.
pub(crate) fn unknown_variables(configuration: &str) -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    unknown(names, configuration)
}

fn unknown(names: impl Iterator<Item = String>, configuration: &str) -> Vec<String> {
    let is_unknown = |name: &String| {
        name.starts_with(PREFIX)
            && !name.starts_with(OF_TESTS)
            && !READ.contains(&name.as_str())
            && !configuration.contains(name.as_str())
    };
    let mut names: Vec<String> = names.filter(is_unknown).collect();
    names.sort_unstable();
    let tell = |name: &String| {
        let near = READ.iter().map(|read| (distance(read, name), *read)).min();
        let meant = near.filter(|(distance, _)| *distance <= 2).map_or_else(
            || format!("there are {}", READ.join(", ")),
            |(_, near)| format!("did you mean {near}?"),
        );
        format!("{name}: no setting is read from this variable of the environment; {meant}")
    };
    names.iter().map(tell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_variable_is_told_with_what_was_meant() {
        let told = |names: &[&str], file: &str| unknown(names.iter().map(|name| (*name).to_owned()), file);
        let [alone] = &told(&["PATH", "CAISSON_LISTN", "CAISSON_DATA", "CAISSON_TEST_IMAGES"], "")[..] else {
            panic!("not one")
        };
        assert!(
            alone.starts_with("CAISSON_LISTN: ") && alone.ends_with("did you mean CAISSON_LISTEN?"),
            "{alone}"
        );
        assert!(told(&["CAISSON_COLOUR"], "")[0].contains("there are CAISSON_BACKEND"));
        assert!(told(&["CAISSON_GITHUB"], "[secrets]\nA = { variable = \"CAISSON_GITHUB\" }").is_empty());
    }
}
