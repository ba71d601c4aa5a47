//! A sandbox without namespaces, from the guest's point of view: where its files are, and what its programs may
//! access.
//!
//! Programs are configured with the same paths as in any other sandbox (`/workspace`, `/home/agent`), but the files
//! are elsewhere, because nothing can be mounted. The guest therefore translates working directories and environment
//! variables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Paths used by the host, and the directories of the tree that replace them.
const PATH_MAPPINGS: [(&str, &str); 3] =
    [("/workspace", "workspace"), ("/app", "workspace"), ("/home/agent", "home")];
/// The CA bundle that every sandbox trusts, and the file of the tree that may replace it.
const CA_BUNDLE: (&str, &str) = ("/etc/ssl/certs/ca-certificates.crt", "ca-certificates.crt");
/// The same for Java. The path appears inside of options.
const JAVA_TRUST_STORE: (&str, &str) = ("/etc/ssl/certs/java/cacerts", "cacerts");

/// The directory tree of the sandbox, and the paths outside of it that its programs may access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LandlockOnly {
    /// The only directory tree that programs may write.
    pub(crate) tree: PathBuf,
    /// Files and directories of the host that programs may read and execute.
    pub(crate) readable: Vec<PathBuf>,
    /// Devices that programs may read and write.
    pub(crate) devices: Vec<PathBuf>,
}

impl LandlockOnly {
    /// Translates a path: `/workspace/a` is in the tree, `/usr` stays the same.
    pub(crate) fn translate(&self, path: &str) -> String {
        let target = PATH_MAPPINGS.iter().find_map(|(name, target)| {
            let rest = path.strip_prefix(name)?;
            (rest.is_empty() || rest.starts_with('/'))
                .then(|| format!("{}/{target}{rest}", self.tree.display()))
        });
        target.unwrap_or_else(|| path.to_owned())
    }

    /// Translates paths in environment variables, including lists of paths, and adds the variables that point
    /// programs to the tree.
    pub(crate) fn translate_variables(
        &self,
        variables: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let (bundle, own) = (CA_BUNDLE.0, self.tree.join(CA_BUNDLE.1));
        let has_own = own.exists();
        let java = self.tree.join(JAVA_TRUST_STORE.1).to_string_lossy().into_owned();
        let translate = |value: &String| match value.as_str() {
            value if value == bundle && has_own => own.to_string_lossy().into_owned(),
            value if value.contains(JAVA_TRUST_STORE.0) => value.replace(JAVA_TRUST_STORE.0, &java),
            // Values other than paths survive the split and join: none of their parts starts with a known path.
            value => value.split(':').map(|part| self.translate(part)).collect::<Vec<_>>().join(":"),
        };
        let mut here: BTreeMap<_, _> =
            variables.iter().map(|(name, value)| (name.clone(), translate(value))).collect();
        let tree = |name: &str| self.tree.join(name).to_string_lossy().into_owned();
        for (name, target) in [("CAISSON_WORKSPACE", "workspace"), ("TMPDIR", "tmp"), ("HOME", "home")] {
            here.entry(name.to_owned()).or_insert_with(|| tree(target));
        }
        here
    }
}

/// Parses a list of paths separated by colons.
pub(crate) fn paths(text: &str) -> Vec<PathBuf> {
    text.split(':').filter(|path| !path.is_empty()).map(|path| Path::new(path).to_path_buf()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn landlock_only() -> LandlockOnly {
        LandlockOnly { tree: "/t".into(), readable: Vec::new(), devices: Vec::new() }
    }

    #[test]
    fn known_paths_are_translated_and_others_are_not() {
        for (path, here) in [
            ("/workspace", "/t/workspace"),
            ("/app/a", "/t/workspace/a"),
            ("/home/agent/.local", "/t/home/.local"),
            ("/workspaces", "/workspaces"),
            ("/usr/bin", "/usr/bin"),
        ] {
            assert_eq!(landlock_only().translate(path), here);
        }
    }

    #[test]
    fn environment_variables_point_to_the_tree() {
        let given = [
            ("HOME", "/home/agent"),
            ("PATH", "/home/agent/bin:/usr/bin"),
            ("J", "-Da=b -Dc=/etc/ssl/certs/java/cacerts"),
            ("P", "http://a:x@127.0.0.1:3128"),
        ];
        let given = given.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let here = landlock_only().translate_variables(&given);
        assert_eq!(here["HOME"], "/t/home");
        assert_eq!(here["PATH"], "/t/home/bin:/usr/bin");
        assert_eq!(here["J"], "-Da=b -Dc=/t/cacerts");
        assert_eq!(here["P"], "http://a:x@127.0.0.1:3128");
        assert_eq!(here["TMPDIR"], "/t/tmp");
        assert_eq!(here["CAISSON_WORKSPACE"], "/t/workspace");
    }
}
