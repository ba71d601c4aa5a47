//! `caisson-launcher FILE`: makes the sandbox that the launch specification in FILE describes, and stays as its owner.
//!
//! `caisson-launcher --remove` and `--probe` read what to do as JSON from standard input.

use std::io;
use std::process::ExitCode;

use launcher::LaunchError;

const USAGE: &str = "usage: caisson-launcher FILE | --remove | --probe";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(argument), None) = (arguments.next(), arguments.next()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let result = match argument.to_str() {
        Some("--remove") => read().and_then(|removal| launcher::remove(&removal)),
        Some("--probe") => read().and_then(|probe| launcher::probe(&probe)),
        _ => launcher::run(argument.as_ref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            launcher::fail(&error);
            ExitCode::FAILURE
        }
    }
}

fn read<T: serde::de::DeserializeOwned>() -> Result<T, LaunchError> {
    serde_json::from_reader(io::stdin().lock())
        .map_err(|error| LaunchError::new("reading standard input", io::Error::other(error)))
}
