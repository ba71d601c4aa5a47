//! What can go wrong with images.

use std::io;
use std::path::Path;

use crate::stage::Stage;

/// A failure that a person is told of.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A name that no image can have.
    #[error(
        "`{0}` cannot be the name of an image: use 1 to 64 lower-case letters, digits, dots, dashes and underscores, \
         the first a letter or digit; `host` is taken"
    )]
    BadName(String),
    /// A mirror of Debian is not an address.
    #[error(
        "{given_by}: `{mirror}` is not the address of a mirror; it looks like http://mirror.example/debian (or https://, file:///)"
    )]
    BadMirror {
        /// The flag or variable.
        given_by: &'static str,
        /// Its value.
        mirror: String,
    },
    /// There is no such image.
    #[error("there is no image `{name}`; there are: {known}")]
    NoImage {
        /// What was asked for.
        name: String,
        /// Those that are there.
        known: String,
    },
    /// There is an image of this name already.
    #[error("there is an image `{0}` already; remove it first, choose another --name, or say --replace")]
    Exists(String),
    /// A sandbox uses the image.
    #[error("the image `{0}` is in use by a sandbox; end the job first")]
    InUse(String),
    /// Somebody builds or imports under this name.
    #[error("another build of `{0}` is going on; wait for it, or end it")]
    Locked(String),
    /// The host lacks a program.
    #[error("{program} is missing, which {purpose}; install the package {package}")]
    ProgramMissing {
        /// Which.
        program: String,
        /// What it is needed for.
        purpose: &'static str,
        /// Where Debian has it.
        package: &'static str,
    },
    /// The host does not let this user do it.
    #[error("{what}; {remedy}")]
    HostUnfit {
        /// What is missing.
        what: String,
        /// What can be done.
        remedy: String,
    },
    /// A stage of a build failed.
    #[error("stage `{}` failed: {why}\n{tail}\nthe whole log: {log}\nthe same command goes on at this stage", stage.name())]
    Stage {
        /// Which.
        stage: Stage,
        /// How it ended.
        why: String,
        /// The last lines that it printed.
        tail: String,
        /// The file with all of them.
        log: String,
    },
    /// A folder is no recipe.
    #[error("{what} is no recipe: {why}")]
    BadRecipe {
        /// Which folder.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// What was to be imported is not what it must be.
    #[error("{what} cannot be imported: {why}")]
    BadSource {
        /// Which file or directory.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file could not be read or written.
    #[error("{doing}")]
    Io {
        /// What was being done to what.
        doing: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    /// Whether the same call may succeed later without anyone changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Stage { .. } | Self::Locked(_) | Self::InUse(_) | Self::Io { .. })
    }

    /// An error that names what was being done to which path.
    pub(crate) fn at(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let doing = format!("{doing} {}", path.display());
        move |source| Self::Io { doing, source }
    }
}
