//! `xdotool` scripts: validation before they run, the command that runs them, and error messages.

/// The command that runs a script from its stdin.
pub(crate) fn script_command() -> Vec<String> {
    vec!["xdotool".into(), "-".into()]
}

/// The stdin for that command: xdotool mishandles a last line without a newline.
pub(crate) fn script_text(script: &str) -> String {
    format!("{}\n", script.trim_end_matches('\n'))
}

/// Why a script failed, with the first line that `xdotool` printed to stderr.
pub(crate) fn explain_script(reason: &str, stderr: &str) -> String {
    match stderr.lines().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("xdotool: {} ({reason})", line.trim().trim_start_matches("xdotool: ")),
        None => reason.to_owned(),
    }
}
