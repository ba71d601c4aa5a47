//! The stages of a build, in order. A stage runs again only if something that it depends on has changed.

use serde::{Deserialize, Serialize};

/// A part of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A minimal Debian that can install packages.
    Base,
    Packages,
    Python,
    Node,
    /// Files of the recipe, and the agent's user.
    Files,
    /// Writes lists of the image's contents and removes traces of the build.
    Finish,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; 6] =
        [Self::Base, Self::Packages, Self::Python, Self::Node, Self::Files, Self::Finish];

    /// The stage's name, which is also the name of its program in the recipe.
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

    /// The stage's position, starting at 1.
    #[must_use]
    pub fn number(self) -> usize {
        Self::ALL.iter().position(|stage| *stage == self).unwrap_or(0) + 1
    }

    /// Whether the stage uses a file of the recipe.
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

    /// Whether the stage can run again on a finished image, because it removes its earlier results.
    pub(crate) fn is_repeatable(self) -> bool {
        !matches!(self, Self::Base | Self::Packages)
    }
}
