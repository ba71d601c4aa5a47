//! A path in the workspace of a job.

use axum::http::StatusCode;

use crate::problem::Problem;

/// A location in the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkspacePath {
    /// The workspace root.
    Root,
    /// A path relative to the root, without `.` and double slashes.
    Inside(String),
}

impl WorkspacePath {
    /// Parses a percent-decoded path of a request.
    pub(crate) fn parse(path: &str) -> Result<Self, Problem> {
        let below = ["/workspace", "/app"].iter().find_map(|root| path.strip_prefix(root)).unwrap_or(path);
        let is_absolute = below == path && path.starts_with('/');
        if !is_absolute && below.split('/').all(|part| matches!(part, "" | ".")) {
            return Ok(Self::Root);
        }
        job::workspace_path(path).map(Self::Inside).map_err(|problem| {
            let (status, code) = if path.contains('\0') || path.len() > 4096 {
                (StatusCode::BAD_REQUEST, "invalid_path")
            } else {
                (StatusCode::FORBIDDEN, "path_outside_workspace")
            };
            Problem::new(status, code, format!("the path {problem}"))
        })
    }

    /// The relative path. Empty for the workspace root.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Root => "",
            Self::Inside(path) => path,
        }
    }

    /// The relative path. An error for the workspace root.
    pub(crate) fn into_file(self) -> Result<String, Problem> {
        match self {
            Self::Root => Err(Problem::bad_request(
                "invalid_path",
                "the path is the workspace itself; name a file in it",
            )),
            Self::Inside(path) => Ok(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_mapped_into_the_workspace_or_rejected() {
        let inside = [
            ("a.txt", "a.txt"),
            ("a//b/./c", "a/b/c"),
            ("/workspace/a", "a"),
            ("/app/b", "b"),
            ("app", "app"),
        ];
        for (path, expected) in inside {
            assert_eq!(WorkspacePath::parse(path).unwrap(), WorkspacePath::Inside(expected.into()), "{path}");
        }
        for path in ["", ".", "./", "/workspace", "/app/"] {
            assert_eq!(WorkspacePath::parse(path).unwrap(), WorkspacePath::Root, "{path}");
        }
        let refused = [
            ("..", "path_outside_workspace"),
            ("a/../../b", "path_outside_workspace"),
            ("/etc/passwd", "path_outside_workspace"),
            ("/", "path_outside_workspace"),
            ("a\0b", "invalid_path"),
        ];
        for (path, code) in refused {
            assert_eq!(WorkspacePath::parse(path).unwrap_err().code(), code, "{path}");
        }
        assert_eq!(WorkspacePath::Root.into_file().unwrap_err().code(), "invalid_path");
    }
}
