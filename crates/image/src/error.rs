//! Errors of image operations.

use std::io;
use std::path::Path;

use crate::stage::Stage;

/// An error to show to the user.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A name that no image can have.
    #[error(
        "`{0}` cannot be the name of an image: use 1 to 64 lower-case letters, digits, dots, dashes and underscores, \
         the first a letter or digit; `host` is taken"
    )]
    BadName(String),
    /// The Debian mirror is not a valid URL.
    #[error(
        "{given_by}: `{mirror}` is not the address of a mirror; it looks like http://mirror.example/debian (or https://, file:///)"
    )]
    BadMirror {
        /// The flag or variable.
        given_by: &'static str,
        mirror: String,
    },
    #[error("there is no image `{name}`; there are: {known}")]
    NoImage {
        /// The requested name.
        name: String,
        /// The existing images.
        known: String,
    },
    /// An image with this name already exists.
    #[error("there is an image `{0}` already; remove it first, choose another --name, or say --replace")]
    Exists(String),
    #[error("the image `{0}` is in use by a sandbox; end the job first")]
    InUse(String),
    /// Another build or import is using this name.
    #[error("another build of `{0}` is in progress; wait for it or stop it")]
    Locked(String),
    #[error("{program} is missing, which {purpose}; install the package {package}")]
    ProgramMissing {
        program: String,
        /// What it is needed for.
        purpose: &'static str,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// The host does not allow this user to do it.
    #[error("{what}; {remedy}")]
    HostUnsupported {
        /// What is missing.
        what: String,
        /// How to fix it.
        remedy: String,
    },
    #[error("stage `{}` failed: {why}\n{tail}\nthe whole log: {log}\nthe same command resumes at this stage", stage.name())]
    Stage {
        stage: Stage,
        /// Its exit status.
        why: String,
        /// The last lines of its output.
        tail: String,
        /// The file with the complete output.
        log: String,
    },
    /// A folder is not a recipe.
    #[error("{what} is no recipe: {why}")]
    BadRecipe { what: String, why: String },
    /// The source of an import is unusable.
    #[error("{what} cannot be imported: {why}")]
    BadSource {
        /// The file or directory.
        what: String,
        why: String,
    },
    #[error("{doing}")]
    Io {
        /// What was being done, and to what.
        doing: String,
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    /// Whether the same call may succeed later without any change by the user.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Stage { .. } | Self::Locked(_) | Self::InUse(_) | Self::Io { .. })
    }

    /// An I/O error that names the action and the path.
    pub(crate) fn at(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let doing = format!("{doing} {}", path.display());
        move |source| Self::Io { doing, source }
    }
}
