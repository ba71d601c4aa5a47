//! The stages of a build, in order. Each is done again only when something that it depends on has changed.

use serde::{Deserialize, Serialize};

/// A part of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The least Debian that can install packages.
    Base,
    /// Debian packages.
    Packages,
    /// Python packages.
    Python,
    /// npm packages.
    Node,
    /// Files of the recipe, and the user.
    Files,
    /// Lists of what is in the image; traces of the build go.
    Finish,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Self; 6] =
        [Self::Base, Self::Packages, Self::Python, Self::Node, Self::Files, Self::Finish];

    /// Its name, which is also that of its program in the recipe.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Packages => "packages",
            Self::Python => "python",
            Self::Node => "node",
            Self::Files => "files",
            Self::Finish => "finish",
        }
    }

    /// Its place among all, from 1.
    #[must_use]
    pub fn number(self) -> usize {
        Self::ALL.iter().position(|stage| *stage == self).unwrap_or(0) + 1
    }

    /// Whether a file of the recipe goes into it.
    pub(crate) fn depends_on(self, path: &str) -> bool {
        if path == format!("stages/{}", self.name()) {
            return true;
        }
        match self {
            Self::Base | Self::Finish => false,
            Self::Packages => {
                path == "packages.txt"
                    || path.starts_with("files/etc/apt/")
                    || path.starts_with("files/etc/dpkg/")
            }
            Self::Python => path == "python/requirements.txt",
            Self::Node => path.starts_with("node/"),
            Self::Files => path.starts_with("files/"),
        }
    }

    /// Whether it can be done on a finished image, since it removes what it made before.
    pub(crate) fn can_be_redone(self) -> bool {
        !matches!(self, Self::Base | Self::Packages)
    }
}
