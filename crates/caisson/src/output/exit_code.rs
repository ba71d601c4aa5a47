//! The exit codes of commands.

use std::process::ExitCode;

/// The job failed.
pub(crate) const EXIT_FAILED: u8 = 1;
/// The command itself failed.
pub(crate) const EXIT_ERROR: u8 = 2;
/// The job was cancelled.
pub(crate) const EXIT_CANCELLED: u8 = 3;
/// The exit code for own failures of commands that otherwise pass on a program's exit code, as in Docker.
pub(crate) const EXIT_COMMAND_ERROR: u8 = 125;
/// The user stopped watching; shells report Ctrl-C with the same code.
pub(crate) const EXIT_DETACHED: u8 = 130;

/// The exit code for a job in this status.
pub(crate) fn exit_code_of(status: Option<&str>) -> ExitCode {
    match status {
        Some("complete") => ExitCode::SUCCESS,
        Some("cancelled") => ExitCode::from(EXIT_CANCELLED),
        _ => ExitCode::from(EXIT_FAILED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_job_is_an_exit_code() {
        assert_eq!(exit_code_of(Some("complete")), ExitCode::from(0));
        assert_eq!(exit_code_of(Some("failed")), ExitCode::from(1));
        assert_eq!(exit_code_of(Some("cancelled")), ExitCode::from(3));
        assert_eq!(exit_code_of(None), ExitCode::from(1));
    }
}
