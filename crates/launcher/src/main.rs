//! `caisson-launcher --stand-by`: accepts requests through a socket on standard input. For each request it creates a
//! sandbox and an owner process that stays with it.
//!
//! `caisson-launcher --remove` and `--probe` read their request as JSON from standard input.

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use launcher::LaunchError;
use launcher::standby::STAND_BY;

const USAGE: &str = "usage: caisson-launcher --stand-by | --remove | --probe";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let (name, argument) = (arguments.next().unwrap_or_default(), arguments.next());
    let result = match argument.as_deref().and_then(OsStr::to_str) {
        Some(STAND_BY) => launcher::stand_by(&name),
        Some("--remove") => read().and_then(|removal| launcher::remove(&removal)),
        Some("--probe") => read().and_then(|probe| launcher::probe(&probe)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
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
