//! `caisson-launcher FILE`: makes the sandbox that the launch specification in FILE describes, and stays as its owner.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(file), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: caisson-launcher FILE");
        return ExitCode::from(2);
    };
    match launcher::run(file.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            launcher::fail(&error);
            ExitCode::FAILURE
        }
    }
}
