//! Validates workspace paths in requests: the only place where the host checks them.
//!
//! The guest resolves paths again with file descriptors (`guest/files/resolve.rs`); this check exists for better
//! error messages and for drafts.

/// Folders that are skipped when a workspace is compared or searched, because tools create many files there that
/// nobody reads.
pub const SKIPPED_FOLDERS: [&str; 8] =
    [".caisson", ".git", "node_modules", "target", ".venv", "venv", "__pycache__", ".cache"];

/// Returns a path relative to the workspace. Accepts `/workspace/...` and `/app/...`; rejects paths that leave the
/// workspace.
///
/// The guest enforces this again when it opens the path.
///
/// # Errors
/// A description of what is wrong with the path.
pub fn workspace_path(path: &str) -> Result<String, String> {
    if path.contains('\0') {
        return Err("has a NUL character".into());
    }
    if path.len() > 4096 {
        return Err(format!("has {} bytes, at most 4096 are allowed", path.len()));
    }
    let relative = ["/workspace", "/app"].iter().find_map(|root| {
        let rest = path.strip_prefix(root)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/'))
    });
    let relative = match relative {
        Some(rest) => rest,
        None if path.starts_with('/') => {
            return Err(format!("`{path}` is outside the workspace; use a path relative to /workspace"));
        }
        None => path,
    };
    if relative.split('/').any(|part| part == "..") {
        return Err(format!("`{path}` has `..`; use a path relative to /workspace without it"));
    }
    let clean: Vec<&str> = relative.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if clean.is_empty() {
        return Err(format!("`{path}` is the workspace itself; name a file in it"));
    }
    Ok(clean.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_paths_are_accepted_in_every_form() {
        assert_eq!(workspace_path("/workspace/a/b").unwrap(), "a/b");
        assert_eq!(workspace_path("/app/./a//b").unwrap(), "a/b");
        assert_eq!(workspace_path("a").unwrap(), "a");
        for bad in ["/etc/passwd", "..", "a/../../b", "/workspaces/x", "", "/app", "a\0b"] {
            assert!(workspace_path(bad).is_err(), "{bad}");
        }
    }
}
