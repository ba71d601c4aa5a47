//! The section `[backend]`: where sandboxes are created.

use anyhow::{Context, Result};
use sandbox::BackendKind;
use serde::Deserialize;

use super::environment::variable;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawBackend {
    pub(crate) kind: Option<BackendKind>,
}

/// The backend from the flag, the environment, the file, or the default.
pub(crate) fn choose(flag: Option<&str>, file: Option<BackendKind>) -> Result<BackendKind> {
    let named = flag.map(|text| ("--backend", text.to_owned()));
    match named.or_else(|| Some(("CAISSON_BACKEND", variable("CAISSON_BACKEND")?))) {
        Some((source, text)) => text.parse::<BackendKind>().context(source),
        None => Ok(file.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_file_and_unknown_kinds_are_refused_with_what_there_is() {
        assert_eq!(choose(None, None).unwrap(), BackendKind::Namespace);
        assert_eq!(choose(None, Some(BackendKind::Docker)).unwrap(), BackendKind::Docker);
        let chosen = choose(Some("namespace"), Some(BackendKind::Docker)).unwrap();
        assert_eq!(chosen, BackendKind::Namespace);
        let error = format!("{:#}", choose(Some("podman"), None).unwrap_err());
        assert_eq!(error, "--backend: `podman` is not a backend; there are namespace and docker");
    }
}
